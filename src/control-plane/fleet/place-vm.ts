/**
 * Places a new boot on a host. `placeVm` reads all hosts without a lock and chooses one; then it locks this host's row
 * in `host_use` until the end of the transaction, and reads the host again. If the host no longer qualifies, it chooses
 * another one. So concurrent placements never promise the same memory twice, and wait for each other only on one host.
 *
 * `hostState` is the state of a host as the operator sees it.
 */
import { refusalOf } from '../../protocol/protocol.ts';
import { AppError, RETRY_LATER_S } from '../../shared/errors.ts';
import type { HostId, InstanceId, OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { type Candidate, choose, type Need } from './choose-host.ts';
import type { FleetHost } from './fleet-store.ts';
import {
  HOST_FRESH_SECONDS,
  isDisconnected,
  keepSlot,
  listCandidates,
  lockUse,
  machineOf,
  releaseLock,
  saveBeforeLock,
} from './host-store.ts';

/** More hosts than fill up during one placement. */
const TRIES = 32;
const NO_SLOT =
  'Each host with room for it has run 65,535 instances that still exist, and can run no other one. Their operator can drain such a host and join it anew.';

export interface BootRequest extends Omit<Need, 'machine' | 'resumes'> {
  readonly instance_id: InstanceId;
  readonly org_id: OrgId;
  /** The host that saved the memory to resume from; null: there is none. */
  readonly memory_of: HostId | null;
}

/** Locks the host's use until the transaction's end, and keeps a slot there for the instance. @throws AppError UNAVAILABLE naming the missing resource */
export async function placeVm(tx: Tx, wanted: BootRequest): Promise<HostId> {
  if (wanted.last !== null && wanted.unsaved && (await isDisconnected(tx, wanted.last)))
    throw unavailable(
      'The host that ran it last is not connected, and may have the only copy of its last writes. Try again when it is back. If it is declared lost, the VM can start on another host.',
    );
  const need = await needOf(tx, wanted);
  const without_slot = new Set<HostId>();
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const connected = await listCandidates(tx, wanted);
    const usable = connected.filter(({ id }) => !without_slot.has(id));
    const found = choose(usable, need);
    if ('reason' in found) {
      if (without_slot.size > 0) throw unavailable(NO_SLOT, false);
      throw unavailable(found.reason, found.passes);
    }
    const { host } = found;
    if (wanted.unsaved && host.id !== wanted.last && connected.some(({ id }) => id === wanted.last))
      throw unavailable(
        `The host that ran it last may have the only copy of its last writes, and does not take it now. Stop the VM (DELETE …/vm), which saves them${need.resumes ? ', and drops its saved memory' : ''}; then it can start on another host.`,
        false,
      );
    await saveBeforeLock(tx);
    await lockUse(tx, host.id);
    if ('host' in choose(await listCandidates(tx, wanted, host.id), need)) {
      if (await keepSlot(tx, host.id, wanted.instance_id)) return host.id;
      without_slot.add(host.id);
    }
    await releaseLock(tx);
  }
  throw unavailable('Every host filled up while the VM was being placed. Try again.');
}

/** What a placement would find now, without a lock. */
export async function previewPlacement(tx: Tx, wanted: BootRequest): Promise<Preview> {
  const need = await needOf(tx, wanted);
  const found = choose(await listCandidates(tx, wanted), need);
  if ('reason' in found) return found;
  const { machine } = found.host;
  return { host: found.host, same_machine: machine === null || machine === need.machine };
}

export type Preview =
  | { readonly reason: string }
  | {
      readonly host: Candidate;
      /** It can resume memory of the last host; also if one of the two does not say. */
      readonly same_machine: boolean;
    };

async function needOf(tx: Tx, { memory_of, ...wanted }: BootRequest): Promise<Need> {
  const machine = memory_of === null ? null : await machineOf(tx, memory_of);
  return { ...wanted, machine, resumes: memory_of !== null };
}

function unavailable(message: string, passes = true): AppError {
  return new AppError('UNAVAILABLE', { message, retry_after_seconds: passes ? 5 : RETRY_LATER_S });
}

// The state of a host, as the operator sees it. Pure.

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
