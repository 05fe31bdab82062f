/**
 * Defines the addresses of the guests' network (docs/adr/0030-tap-devices.md).
 *
 * Every guest sees the same address as its own, because its memory image and its template contain it. Outside of its
 * TAP device, a guest has an address of its own, by its slot. It is from the range for tests of network equipment (RFC
 * 2544), which no host uses otherwise.
 */
import { assert } from '../../shared/assert.ts';

/** As a guest sees its network; the same in QEMU's user network (guest/initrd/init). */
export const GUEST = '10.0.2.15';
export const GATEWAY = '10.0.2.2';
export const GUEST_RESOLVER = '10.0.2.3';
/** Of gateway and resolver. A resumed guest still knows it, so it is the same for all devices. */
export const GATEWAY_MAC = '52:55:0a:00:02:02';

/** All guests' own addresses. */
export const GUESTS = '198.18.0.0/16';
/** The two ends of the link between the host's network namespace and that of the guests. */
export const HOST_END = '198.19.0.1';
export const GUESTS_END = '198.19.0.2';

/** A guest's own address: 198.18, and the two bytes of its slot. */
export function guestAddress(slot: number): string {
  assert(Number.isInteger(slot) && slot > 0 && slot <= 65_535, 'slot is out of range');
  return `198.18.${slot >> 8}.${slot & 255}`;
}

/** Marks packets for the egress proxy, so that they are delivered in the guests' network whatever their destination. */
export const PROXY_MARK = 0x6265;
/** The group of the kernel's log (NFLOG) for packets that guests were refused. */
export const DENIED_LOG_GROUP = 6265;
/** A set by guest with a rule about it, for the table that uses them. */
export function perGuest(name: string): string {
  return `  set ${name} { type ipv4_addr; size 65535; flags dynamic, timeout; timeout 1m; }`;
}
export const DENIED_SET = perGuest('denied');
/** The statement that logs such a packet, before it is refused; with {@link DENIED_SET}. A scan must not flood the log, nor hide another's packets. */
export const LOG_DENIED = `update @denied { ip saddr limit rate 50/second burst 200 packets } log group ${DENIED_LOG_GROUP} queue-threshold 1`;

/** The name of its TAP device. */
export function tapName(slot: number): string {
  return `vm${slot}`;
}

/** The slot that a TAP device is named after. */
export function slotOf(tap_name: string): number {
  return Number(tap_name.replace(/^vm/, ''));
}

/** How a VM is connected. `user`: QEMU's user network, which forwards one port of the host's loopback to the guest's sshd. */
export type VmNetwork =
  | { readonly kind: 'tap'; readonly address: string }
  | { readonly kind: 'user'; readonly ssh_forward_port: number };

export interface Endpoint {
  readonly host: string;
  readonly port: number;
}

const SSH = 22;

/** Where this host reaches a guest's TCP port; null: it cannot be reached (the user network forwards sshd's port only). */
function guestEndpoint(network: VmNetwork, port: number): Endpoint | null {
  if (network.kind === 'tap') return { host: network.address, port };
  return port === SSH ? { host: '127.0.0.1', port: network.ssh_forward_port } : null;
}

/** Where this host reaches a guest's sshd. */
export function sshEndpoint(network: VmNetwork): Endpoint {
  const endpoint = guestEndpoint(network, SSH);
  assert(endpoint !== null, 'every network forwards sshd');
  return endpoint;
}
