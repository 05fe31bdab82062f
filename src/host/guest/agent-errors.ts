/** What can go wrong with a guest agent. None of it says that the VM itself is broken. */

/** No answer in time: the guest is busy, frozen, still booting, or has no agent. */
export class GuestAgentTimeoutError extends Error {
  override name = 'GuestAgentTimeoutError';
}

/** The agent answered with an error. */
export class GuestAgentError extends Error {
  override name = 'GuestAgentError';
  readonly command: string;
  /** The agent's own words: from the guest, so never to be trusted as more than text. */
  readonly desc: string;

  constructor(command: string, desc: string) {
    super(`${command}: ${desc}`);
    this.command = command;
    this.desc = desc;
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
