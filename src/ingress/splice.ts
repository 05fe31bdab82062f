/** Two sockets as one: bytes as they are, no more of them in memory than the sockets' own watermarks. */
import { connect, type Socket } from 'node:net';
import type { IngressLimits } from './limits.ts';

const KEEP_ALIVE_MS = 60_000;

export interface SpliceEvents {
  /** The client has sent its first bytes. */
  readonly spoke: () => void;
  readonly closed: () => void;
}

/** Dials `target` (`host:port`) for a caller and joins the two; either one's end ends the other. */
export function splice(
  inbound: Socket,
  target: string,
  limits: Pick<IngressLimits, 'dial_ms' | 'silent_ms'>,
  events: SpliceEvents,
): void {
  const at = target.lastIndexOf(':');
  const outbound = connect({
    host: target.slice(0, at),
    port: Number(target.slice(at + 1)),
    noDelay: true,
    allowHalfOpen: true,
  });
  const dialled = setTimeout(() => outbound.destroy(), limits.dial_ms);
  const silent = setTimeout(() => inbound.destroy(), limits.silent_ms);
  outbound.once('connect', () => {
    clearTimeout(dialled);
    inbound.setKeepAlive(true, KEEP_ALIVE_MS);
    outbound.setKeepAlive(true, KEEP_ALIVE_MS);
    inbound.once('data', () => {
      clearTimeout(silent);
      events.spoke();
    });
    inbound.pipe(outbound).pipe(inbound);
  });
  outbound.on('error', () => outbound.destroy());
  outbound.once('close', () => {
    clearTimeout(dialled);
    inbound.destroySoon();
  });
  inbound.once('close', () => {
    clearTimeout(silent);
    outbound.destroy();
    events.closed();
  });
}
