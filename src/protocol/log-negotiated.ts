import type { Log } from '../shared/log.ts';
import type { Negotiated } from './client.ts';

/** Logs the protocol versions of both sides, at the first answer and at each change. */
export function logNegotiated(log: Log): (found: Negotiated) => void {
  return ({ ours, theirs, refusal }) => {
    const versions = { protocol: ours, control_plane_protocol: theirs };
    if (refusal === null) log.info(versions, 'the control plane answers');
    else log.error({ ...versions, reason: refusal }, 'the control plane refuses this version');
  };
}
