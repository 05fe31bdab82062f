/** What control planes tell each other about calls to hosts, and the list of them that hosts and ingresses keep. */
import { CALLS_MAX, PendingCall } from './host-calls.ts';
import { HostId, listOf, matching, named, type Of, Uuid, whole } from './schemas.ts';

export const CONTROL_PLANES_MAX = 64;

/** Where a control plane is reached, and the certificate that it shows there (`X509Certificate.fingerprint256`). */
export const ControlPlanePlace = named('ControlPlanePlace', {
  url: matching('^https://[\\x21-\\x7e]+$', 300),
  fingerprint: matching('^([0-9A-F]{2}:){31}[0-9A-F]{2}$', 95),
});
export type ControlPlanePlace = Of<typeof ControlPlanePlace>;

/** `protocol`: of the host's agent. */
export const PeerTakeRequest = named('PeerTakeRequest', { host_id: HostId, protocol: whole(0, 999_999_999) });
export const PeerTakeResponse = named('PeerTakeResponse', { calls: listOf(PendingCall, CALLS_MAX) });
export const PeerConfirmRequest = named('PeerConfirmRequest', {
  host_id: HostId,
  call_ids: listOf(Uuid, CALLS_MAX),
});
export const PeerHostRequest = named('PeerHostRequest', { host_id: HostId });

/** The path where a control plane opens the stream that a host has opened to it for another's call. */
export function peerStreamPath(host_id: string, call_id: string): string {
  return `/internal/v1/peers/streams/${host_id}/${call_id}`;
}
