/** What can go wrong with a guest agent. None of it says that the VM itself is broken. */
import { untrustedText } from '../../lib/untrusted-text.ts';

/** No answer in time: the guest is busy, frozen, still booting, or has no agent. */
export class GuestAgentTimeoutError extends Error {
  override name = 'GuestAgentTimeoutError';
}

/** The agent has sent what no agent sends, and is not asked for a while: nothing was sent to it. */
export class GuestAgentCutOffError extends GuestAgentTimeoutError {
  override name = 'GuestAgentCutOffError';
}

/** The agent answered with an error. */
export class GuestAgentError extends Error {
  override name = 'GuestAgentError';
  readonly command: string;
  /** The agent's own words, cut and cleaned: from the guest, so never to be trusted as more than text. */
  readonly desc: string;

  constructor(command: string, desc: unknown) {
    const text = untrustedText(desc) || 'unknown error';
    super(`${command}: ${text}`);
    this.command = command;
    this.desc = text;
  }
}

/** QEMU closed the channel, or is gone. */
export class GuestAgentClosedError extends Error {
  override name = 'GuestAgentClosedError';
}

/** The guest sent what no agent sends: an endless line, no JSON, a reply of the wrong shape. */
export class GuestAgentProtocolError extends Error {
  override name = 'GuestAgentProtocolError';
}
