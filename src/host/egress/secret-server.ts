/** Connections to the servers that get secrets. Invariant: a connection is used only after its certificate was found valid for its name. */
import { readFileSync, statSync } from 'node:fs';
import { connect, createSecureContext, rootCertificates, type SecureContext, type TLSSocket } from 'node:tls';
import { contain } from '../../shared/contain.ts';
import { messageOf } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';

const CONNECT_MS = 15_000;
const KEEP_ALIVE_MS = 60_000;

/** Why a server gets no request; for the guest, and the host's log. Without any value. */
export class ServerTrouble extends Error {
  override name = 'ServerTrouble';
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

export interface ServerPlace {
  readonly name: string;
  readonly address: string;
  readonly port: number;
}

/** `protocols`: what is offered (ALPN). @throws ServerTrouble */
export async function connectVerified(
  { name, address, port }: ServerPlace,
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
    reject(new ServerTrouble(`no verified connection to ${name}: ${untrustedText(messageOf(error))}`));
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

/** @throws ServerTrouble */
function readable(roots: TrustedRoots): SecureContext {
  try {
    return roots.context();
  } catch (error) {
    throw new ServerTrouble(`the host's authorities cannot be read: ${messageOf(error)}`);
  }
}
