import type { ObjectRequest, SignedRequest } from '../../protocol/object-permissions.ts';
import type { ConnectionBudget } from '../../shared/connection-budget.ts';
import type { AppContext } from '../context.ts';
import type { Peers } from '../fleet/peers.ts';

type Shared =
  | 'db'
  | 'hub'
  | 'log'
  | 'disk_keys'
  | 'host_calls'
  | 'quotas'
  | 'installation'
  | 'http'
  | 'secrets'
  | 'metrics'
  | 'oidc';

export interface InternalContext extends Pick<AppContext, Shared> {
  /** The lease of a host that is not the only one. */
  readonly host_lease_ms: number;
  /** Signs a request to the bucket, for a host on another machine. Absent: the objects are in a folder. */
  readonly sign?: (request: ObjectRequest) => Promise<SignedRequest>;
  /** The other control planes; absent: there can be none. */
  readonly peers?: Pick<Peers, 'isPeer' | 'places'>;
  /** Of this listener; absent: it has no bound. */
  readonly connections?: Pick<ConnectionBudget, 'trust'>;
}
