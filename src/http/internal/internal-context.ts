import type { AppContext } from '../context.ts';
import type { Installation } from './weaknesses.ts';

type Shared = 'db' | 'hub' | 'log' | 'disk_keys' | 'host_calls' | 'quotas';

export interface InternalContext extends Pick<AppContext, Shared> {
  /** The lease of a host that is not the only one. */
  readonly host_lease_ms: number;
  /** For `berth doctor`; absent: the call is not served. */
  readonly installation?: Installation;
}
