/** Failures of a guest agent. None of them means that the VM itself has failed. */
import { untrustedText } from '../../shared/untrusted-text.ts';

/** No answer in time: the guest is busy, frozen, still booting, or has no agent. */
export class GuestAgentTimeoutError extends Error {
  override name = 'GuestAgentTimeoutError';
}

/** The agent broke the protocol and is cut off for a while: the call was not sent. */
export class GuestAgentCutOffError extends GuestAgentTimeoutError {
  override name = 'GuestAgentCutOffError';
}

/** The agent answered with an error. */
export class GuestAgentError extends Error {
  override name = 'GuestAgentError';
  readonly command: string;
  /** The agent's message, shortened and cleaned. Untrusted text from the guest. */
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

/** The guest broke the protocol: an endless line, no JSON, a reply of the wrong shape. */
export class GuestAgentProtocolError extends Error {
  override name = 'GuestAgentProtocolError';
}
