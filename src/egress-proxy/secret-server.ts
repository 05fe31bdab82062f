/**
 * Connects by TLS to the servers that get secrets, and reports servers that cannot be trusted or reached. Invariant: a
 * connection is used only after the server's certificate was verified for its name.
 */
import { readFileSync, statSync } from 'node:fs';
import { connect, createSecureContext, rootCertificates, type SecureContext, type TLSSocket } from 'node:tls';
import type { FromEgressProxy } from '../protocol/egress-proxy-messages.ts';
import { contain } from '../shared/contain.ts';
import { messageOf } from '../shared/errors.ts';
import { untrustedText } from '../shared/untrusted-text.ts';

const CONNECT_MS = 15_000;
const KEEP_ALIVE_MS = 60_000;

/** Why a server gets no request; for the guest, and the host's log. Without any value. */
export class ServerFailure extends Error {
  override name = 'ServerFailure';
}

/** Node's authorities and those of the host's file, which is read again when it changes. */
export class TrustedRoots {
  readonly #path: string;
  #modified_ms = -1;
  #context: SecureContext | null = null;

  constructor(path: string) {
    this.#path = path;
  }

  context(): SecureContext {
    const modified_ms = statSync(this.#path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
    if (this.#context === null || modified_ms !== this.#modified_ms) {
      const own = modified_ms === 0 ? [] : [readFileSync(this.#path, 'utf8')];
      this.#context = createSecureContext({ ca: [...rootCertificates, ...own], minVersion: 'TLSv1.2' });
      this.#modified_ms = modified_ms;
    }
    return this.#context;
  }
}

export interface ServerAddress {
  readonly name: string;
  readonly address: string;
  readonly port: number;
}

/** `protocols`: what is offered (ALPN). @throws ServerFailure */
export async function connectVerified(
  { name, address, port }: ServerAddress,
  protocols: readonly string[],
  roots: TrustedRoots,
): Promise<TLSSocket> {
  const { promise, resolve, reject } = Promise.withResolvers<TLSSocket>();
  const secureContext = readable(roots);
  const socket = contain(
    connect({
      host: address,
      port,
      servername: name,
      secureContext,
      rejectUnauthorized: true,
      ...(protocols.length === 0 ? {} : { ALPNProtocols: [...protocols] }),
    }),
  );
  const late = setTimeout(() => socket.destroy(new Error('it did not answer in time')), CONNECT_MS);
  const fail = (error: Error) => {
    clearTimeout(late);
    socket.destroy();
    reject(new ServerFailure(`no verified connection to ${name}: ${untrustedText(messageOf(error))}`));
  };
  socket.on('error', fail);
  socket.once('close', () => fail(new Error('it closed the connection')));
  socket.once('secureConnect', () => {
    clearTimeout(late);
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    resolve(socket);
  });
  return promise;
}

/** @throws ServerFailure */
function readable(roots: TrustedRoots): SecureContext {
  try {
    return roots.context();
  } catch (error) {
    throw new ServerFailure(`the host's authorities cannot be read: ${messageOf(error)}`);
  }
}

const REPORT_AGAIN_MS = 60_000;
/** In that time. */
const REPORTED_MAX = 100;

/** Reports servers that could not be trusted or reached: each once in a while, so that no VM fills the log. Bounded. */
export class ServerFailureReports {
  readonly #tell: (message: FromEgressProxy) => void;
  readonly #reported = new Set<string>();
  #since_ms = Number.NEGATIVE_INFINITY;

  constructor(tell: (message: FromEgressProxy) => void) {
    this.#tell = tell;
  }

  add(guest: string, name: string, reason: string): void {
    if (performance.now() - this.#since_ms > REPORT_AGAIN_MS) {
      this.#since_ms = performance.now();
      this.#reported.clear();
    }
    const key = JSON.stringify([guest, name, reason]);
    if (this.#reported.has(key) || this.#reported.size >= REPORTED_MAX) return;
    this.#reported.add(key);
    this.#tell({ type: 'server_failed', guest, name, reason });
  }
}
