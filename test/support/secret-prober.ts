/**
 * Makes the attempts of secret-attempts.ts, as the guest: `secret-prober.ts WAIT_MS` reads them as JSON from stdin, and
 * prints the answer to each.
 */
import { once } from 'node:events';
import { connect as connectHttp2, type OutgoingHttpHeaders } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { json } from 'node:stream/consumers';
import { setTimeout as pause } from 'node:timers/promises';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import type { SecretAttempt } from './secret-attempts.ts';

const WAIT_MS = Number(process.argv[2]);
/** Between two parts. */
const PART_MS = 100;

function open({ kind, address, port, sni, renegotiate }: SecretAttempt): Socket {
  if (kind === 'plain') return connect({ host: address, port });
  return connectTls({
    ...{ host: address, port, servername: sni ?? '', rejectUnauthorized: false },
    ALPNProtocols: [kind === 'http2' ? 'h2' : 'http/1.1'],
    ...(renegotiate ? { maxVersion: 'TLSv1.2' } : {}),
  });
}

async function probe(attempt: SecretAttempt): Promise<string> {
  const socket = open(attempt);
  let said = '';
  socket.on('error', (error) => {
    said += `[${error.message}]`;
  });
  const late = AbortSignal.timeout(WAIT_MS);
  if (attempt.kind === 'http2') return probeHttp2(attempt, socket, late);
  socket.on('data', (part: Buffer) => {
    said += part.toString('latin1');
  });
  try {
    await once(socket, attempt.kind === 'plain' ? 'connect' : 'secureConnect', { signal: late });
    for (const [number, part] of (attempt.send ?? []).entries()) {
      if (number > 0) await pause(PART_MS);
      if (number > 0 && attempt.renegotiate) (socket as TLSSocket).renegotiate({}, () => undefined);
      socket.write(part, 'latin1');
    }
    await once(socket, 'close', { signal: late });
  } catch {
    // It took too long, or failed: what was said counts.
  }
  socket.destroy();
  return said;
}

async function probeHttp2(
  { headers = {}, body, trailers }: SecretAttempt,
  socket: Socket,
  late: AbortSignal,
): Promise<string> {
  const session = connectHttp2('https://api.test', { createConnection: () => socket });
  let said = '';
  session.on('error', () => undefined);
  const { promise, resolve } = Promise.withResolvers<void>();
  late.addEventListener('abort', () => resolve());
  try {
    const stream = session.request(headers as OutgoingHttpHeaders, {
      endStream: body === undefined,
      waitForTrailers: trailers !== undefined,
    });
    stream.on('wantTrailers', () => stream.sendTrailers(trailers ?? {}));
    stream.on('error', (error) => {
      said += `[${error.message}]`;
    });
    stream.on('response', (answer) => {
      said += JSON.stringify(answer);
    });
    stream.on('data', (part: Buffer) => {
      said += part.toString('latin1');
    });
    stream.once('close', () => resolve());
    if (body !== undefined) stream.end(body);
    await promise;
  } catch (error) {
    said += String(error);
  }
  session.destroy();
  return said;
}

// The deadlines alone would not keep it running.
setInterval(() => undefined, 1_000);
const attempts = (await json(process.stdin)) as SecretAttempt[];
for (let first = 0; first < attempts.length; first += 8) {
  await Promise.all(
    attempts.slice(first, first + 8).map(async (attempt) => {
      process.stdout.write(`${JSON.stringify([attempt.name, await probe(attempt)])}\n`);
    }),
  );
}
process.exit(0);
