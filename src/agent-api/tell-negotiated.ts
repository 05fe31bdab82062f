import type { Log } from '../lib/log.ts';
import type { Negotiated } from './client.ts';

/** Logs which versions of the agent protocol meet: at the first answer, and whenever that changes. */
export function tellNegotiated(log: Log): (found: Negotiated) => void {
  return ({ ours, theirs, refusal }) => {
    const versions = { protocol: ours, control_plane_protocol: theirs };
    if (refusal === null) log.info(versions, 'the control plane answers');
    else log.error({ ...versions, reason: refusal }, 'the control plane refuses this version');
  };
}
