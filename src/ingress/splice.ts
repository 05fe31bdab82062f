/** Joins a client's socket with a connection to the VM. Memory is bounded by the sockets' watermarks. */
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { endAfterFault } from '../shared/contain.ts';
import { passParts } from '../shared/pass-parts.ts';
import { pause } from '../shared/retry.ts';
import type { Dial } from './dial.ts';
import type { IngressLimits } from './limits.ts';

const KEEP_ALIVE_MS = 60_000;

export interface SpliceEvents {
  /** The client has sent its first bytes. */
  readonly firstData: () => void;
  /** The client has sent `login_bytes`. */
  readonly sentLogin: () => void;
  readonly closed: () => void;
}

/** Dials `target` and joins it with `inbound`. The end of either ends the other. */
export function splice(
  inbound: Socket,
  way: { readonly target: string; readonly dial: Dial; readonly delay_ms: number },
  limits: Pick<IngressLimits, 'dial_ms' | 'silent_ms' | 'login_bytes'>,
  events: SpliceEvents,
): void {
  const silent = setTimeout(() => inbound.destroy(), limits.silent_ms);
  inbound.once('close', () => {
    clearTimeout(silent);
    events.closed();
  });
  const dialled = dialLater(inbound, way, limits.dial_ms).then(
    (outbound) => {
      outbound.on('error', () => outbound.destroy());
      if (inbound.destroyed) return void outbound.destroy();
      inbound.once('data', () => {
        clearTimeout(silent);
        events.firstData();
      });
      const count = () => {
        if (inbound.bytesRead < limits.login_bytes) return;
        inbound.off('data', count);
        events.sentLogin();
      };
      inbound.on('data', count);
      join(inbound, outbound);
    },
    () => void inbound.destroy(),
  );
  dialled.catch(endAfterFault(inbound));
}

/** Does not dial if the client disconnects during the delay. */
async function dialLater(
  inbound: Socket,
  { target, dial, delay_ms }: { readonly target: string; readonly dial: Dial; readonly delay_ms: number },
  dial_ms: number,
): Promise<Duplex> {
  if (delay_ms > 0) await pause(delay_ms);
  if (inbound.destroyed) throw new Error('the client disconnected');
  return dial(target, dial_ms);
}

function join(inbound: Socket, outbound: Duplex): void {
  inbound.setKeepAlive(true, KEEP_ALIVE_MS);
  outbound.once('close', () => inbound.destroySoon());
  inbound.once('close', () => outbound.destroy());
  passParts(inbound, outbound);
  passParts(outbound, inbound);
}
