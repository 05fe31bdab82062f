/**
 * The receiver of the webhook benchmark, as a process of its own. It listens on one address of 127.0.0.0/8 for each
 * endpoint, and counts requests. Its parent starts a count by the message `expect`. The receiver answers `expects` at
 * once, and `counted` when all requests have come.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export type ToReceiver =
  | { readonly listen: number }
  /** `delays`: keeps the time from the body's `timestamp` to its receipt. */
  | { readonly expect: number; readonly delays: boolean };

export type FromReceiver =
  | { readonly origins: readonly string[] }
  | { readonly expects: number }
  | {
      readonly counted: number;
      /** Of the last request, since the epoch. */
      readonly last_ms: number;
      readonly delays_ms: readonly number[];
      /** Different values of webhook-id; 0 for a sender that gives none. */
      readonly ids: number;
    };

const FIRST_ADDRESS = 0x7f000101;

let expected = 0;
let counted = 0;
let measures_delays = false;
let delays_ms: number[] = [];
let ids = new Set<string>();

function take(request: IncomingMessage, response: ServerResponse): void {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    const now_ms = Date.now();
    response.statusCode = 204;
    response.end();
    const id = request.headers['webhook-id'];
    if (typeof id === 'string') ids.add(id);
    if (measures_delays) {
      const { timestamp } = JSON.parse(Buffer.concat(chunks).toString('utf8')) as { timestamp: string };
      delays_ms.push(now_ms - Date.parse(timestamp));
    }
    if (++counted === expected) tell({ counted, last_ms: now_ms, delays_ms, ids: ids.size });
  });
}

function tell(message: FromReceiver): void {
  process.send?.(message);
}

function addressOf(nth: number): string {
  const address = FIRST_ADDRESS + nth;
  return [24, 16, 8, 0].map((bits) => (address >>> bits) & 0xff).join('.');
}

async function listen(endpoints: number): Promise<string[]> {
  const origins: string[] = [];
  let port = 0;
  for (let nth = 0; nth < endpoints; nth++) {
    const host = addressOf(nth);
    const server = createServer({ keepAliveTimeout: 60_000 }, take);
    await new Promise<void>((resolve, reject) =>
      server.once('error', reject).listen({ host, port }, resolve),
    );
    port = (server.address() as AddressInfo).port;
    origins.push(`http://${host}:${port}`);
  }
  return origins;
}

process.on('message', async (message: ToReceiver) => {
  if ('listen' in message) {
    tell({ origins: await listen(message.listen) });
    return;
  }
  expected = message.expect;
  measures_delays = message.delays;
  counted = 0;
  delays_ms = [];
  ids = new Set();
  tell({ expects: expected });
});
process.on('disconnect', () => process.exit());
