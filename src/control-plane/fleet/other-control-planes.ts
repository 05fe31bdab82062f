/** What calls to hosts need of the installation's other control planes. `control-plane/fleet/peers.ts` has it; alone there are none. */
import { randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import type { CallAnswer, PendingCall } from '../../protocol/host-calls.ts';
import type { HostId } from '../../shared/ids.ts';

export interface OtherControlPlanes {
  /** This control plane's own id, 12 hexadecimal digits: ids of its calls begin with it. */
  readonly id: string;
  /** Tells the others that a call for the host waits here. */
  tell(host_id: HostId): void;
  /** Calls `listener` when another tells so. */
  onTold(listener: (host_id: HostId) => void): void;
  /** Takes the calls that wait at the others, of which they have told. */
  take(host_id: HostId, protocol: number): Promise<PendingCall[]>;
  /** Confirms that the host got calls of the others. */
  confirm(host_id: HostId, call_ids: readonly string[]): Promise<void>;
  /** Passes on the answer to another's call; false: its caller no longer waits. */
  answer(host_id: HostId, call_id: string, answer: CallAnswer): Promise<boolean>;
  /** The same with a stream. It is accepted once the other's caller has it: the host's answer may follow at once. */
  connect(host_id: HostId, call_id: string, accept: () => Duplex): Promise<boolean>;
  /** The host's agent was restarted: it will not answer calls that it had taken. */
  failTaken(host_id: HostId): Promise<void>;
}

/** The id of the control plane that a call's id names. */
export function askerOf(call_id: string): string {
  return call_id.slice(0, 8) + call_id.slice(9, 13);
}

/** A new id for a call: a UUID that begins with the control plane's id. */
export function newCallId(control_plane_id: string, random: string): string {
  return `${control_plane_id.slice(0, 8)}-${control_plane_id.slice(8)}${random.slice(13)}`;
}

/** For a control plane without others. */
export function noOthers(): OtherControlPlanes {
  return {
    id: randomBytes(6).toString('hex'),
    tell: () => undefined,
    onTold: () => undefined,
    take: async () => [],
    confirm: async () => undefined,
    answer: async () => false,
    connect: async () => false,
    failTaken: async () => undefined,
  };
}
