/** The state of a host, as the operator sees it. Pure. */
import { refusalOf } from '../../protocol/protocol.ts';
import type { FleetHost } from './fleet-store.ts';
import { HOST_FRESH_SECONDS } from './host-store.ts';

/**
 * `cordoned`: gets no new VM. `draining`: and its VMs move to others. `drained`: and it has none. `expected`: added, and not seen
 * yet. `silent`: no recent heartbeat. `refused`: it speaks another version of the protocol.
 */
export const HOST_STATES = [
  'up',
  'cordoned',
  'draining',
  'drained',
  'expected',
  'silent',
  'lost',
  'refused',
] as const;
export type HostState = (typeof HOST_STATES)[number];

type Known = Pick<FleetHost, 'last_seen_at' | 'lost_at' | 'cordoned' | 'draining' | 'vms' | 'protocol'>;

export function hostState({ last_seen_at, lost_at, protocol, ...host }: Known, now = Date.now()): HostState {
  if (protocol !== null && refusalOf(protocol) !== null) return 'refused';
  if (lost_at !== null) return 'lost';
  if (last_seen_at === null) return 'expected';
  if (now - last_seen_at.getTime() > HOST_FRESH_SECONDS * 1000) return 'silent';
  if (host.draining) return host.vms === 0 ? 'drained' : 'draining';
  return host.cordoned ? 'cordoned' : 'up';
}

/** Its hosts; this machine's own only once it has reported. */
export function isOfFleet({ remote, last_seen_at }: Pick<FleetHost, 'remote' | 'last_seen_at'>): boolean {
  return remote || last_seen_at !== null;
}
