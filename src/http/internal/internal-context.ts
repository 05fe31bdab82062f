import type { AppContext } from '../context.ts';
import type { Installation } from './weaknesses.ts';

type Shared = 'db' | 'hub' | 'log' | 'disk_keys' | 'host_calls' | 'quotas';

export interface InternalContext extends Pick<AppContext, Shared> {
  /** Of hosts that are not the only one. */
  readonly host_lease_ms: number;
  /** For `berth doctor`; absent: it is told nothing. */
  readonly installation?: Installation;
}
