/** Connects to a checked address for a guest, and joins the two connections. */
import { connect, type Socket } from 'node:net';
import { contain } from '../../shared/contain.ts';
import { passParts } from '../../shared/pass-parts.ts';

const CONNECT_MS = 15_000;
const KEEP_ALIVE_MS = 60_000;

/**
 * `first`: what the guest has sent already. The end of either connection ends the other; a failure to connect resets the guest's.
 * `more`: takes what the guest sends next, and says whether the rest may flow.
 */
export function joinTo(
  inside: Socket,
  { address, port }: { readonly address: string; readonly port: number },
  first: Buffer,
  more: (outside: Socket) => Promise<boolean> = async () => true,
): void {
  const outside = contain(connect({ host: address, port, allowHalfOpen: true, noDelay: true }));
  const late = setTimeout(() => outside.destroy(), CONNECT_MS);
  inside.setNoDelay(true);
  inside.once('close', () => outside.destroy());
  outside.on('error', () => outside.destroy());
  outside.once('close', (failed) => {
    clearTimeout(late);
    if (outside.bytesRead === 0 || failed) inside.resetAndDestroy();
    else inside.destroySoon();
  });
  outside.once('connect', () => {
    clearTimeout(late);
    for (const socket of [inside, outside]) socket.setKeepAlive(true, KEEP_ALIVE_MS);
    if (first.length > 0) outside.write(first);
    passParts(outside, inside);
    void more(outside).then(
      (flows) => void (flows ? passParts(inside, outside) : outside.destroy()),
      () => outside.destroy(),
    );
  });
}
