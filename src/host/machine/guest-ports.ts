/** The way into a guest's TCP ports, beside that to its sshd. */
import type { Socket } from 'node:net';

/** A drained guest gets no connections until it may have them again. */
export interface GuestPorts {
  /** The `host:port` of this machine that leads to the guest's port. @throws NotListeningError, DrainedError */
  open(port: number): Promise<string>;
  /** A connection that the guest has accepted. The caller must end it. @throws as {@link open} */
  connect(port: number): Promise<Socket>;
  /** Ends the ways in, then waits for the connections through them, for two seconds at most. */
  drain(signal: AbortSignal): Promise<void>;
  /** The guest may have connections again. */
  resume(): Promise<void>;
}

/** No program in the guest accepts connections at the port. */
export class NotListeningError extends Error {
  override name = 'NotListeningError';
}
/** The VM is about to stop, restart or suspend. */
export class DrainedError extends Error {
  override name = 'DrainedError';
}
/** How long requests under way may take before a stop, restart or suspend. */
export const DRAIN_MS = 2_000;
/** A guest that accepts no connection within this time does not listen. */
export const ACCEPT_MS = 3_000;
