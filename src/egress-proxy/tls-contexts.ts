/**
 * Caches the certificates that the proxy shows to guests whose TLS connections it intercepts. One private key serves
 * all of them; it is generated when the proxy starts, and never leaves this process. For each name, the agent signs a
 * certificate on request, by the authority of the VM's instance (host/egress/leaf-certificates.ts). A certificate is
 * used until half of its life is over. At most KEPT_MAX are cached.
 */
import { generateKeyPairSync } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import { LEAF_AHEAD_MS } from '../protocol/egress-proxy-messages.ts';

const KEPT_MAX = 1_000;
/** Half of its life is left for guests whose clock is ahead. */
const USE_MS = LEAF_AHEAD_MS / 2;
const ANSWER_MS = 5_000;

interface Kept {
  readonly context: Promise<SecureContext | null>;
  readonly until_ms: number;
}

export class TlsContexts {
  readonly #ask: (authority: string, name: string, public_key: string) => void;
  readonly #private_key: string;
  readonly #public_key: string;
  readonly #kept = new Map<string, Kept>();
  readonly #asked = new Map<string, (certificate: string | null) => void>();

  /** `ask`: the answer comes by {@link take}. */
  constructor(ask: (authority: string, name: string, public_key: string) => void) {
    this.#ask = ask;
    const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    this.#private_key = privateKey.export({ type: 'pkcs8', format: 'pem' }) as string;
    this.#public_key = publicKey.export({ type: 'spki', format: 'der' }).toString('base64');
  }

  /** `authority`: its fingerprint. null: the agent made none. */
  contextFor(authority: string, name: string): Promise<SecureContext | null> {
    const key = keyOf(authority, name);
    const kept = this.#kept.get(key);
    if (kept && kept.until_ms > performance.now()) return kept.context;
    const context = this.#make(authority, name);
    this.#kept.delete(key);
    this.#kept.set(key, { context, until_ms: performance.now() + USE_MS });
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= KEPT_MAX) break;
      this.#kept.delete(oldest);
    }
    void context.then((made) => {
      if (made === null && this.#kept.get(key)?.context === context) this.#kept.delete(key);
    });
    return context;
  }

  take(authority: string, name: string, certificate: string | null): void {
    this.#asked.get(keyOf(authority, name))?.(certificate);
  }

  async #make(authority: string, name: string): Promise<SecureContext | null> {
    const key = keyOf(authority, name);
    const { promise, resolve } = Promise.withResolvers<string | null>();
    this.#asked.set(key, resolve);
    const late = setTimeout(() => resolve(null), ANSWER_MS);
    this.#ask(authority, name, this.#public_key);
    const cert = await promise;
    clearTimeout(late);
    if (this.#asked.get(key) === resolve) this.#asked.delete(key);
    return cert === null
      ? null
      : createSecureContext({ key: this.#private_key, cert, minVersion: 'TLSv1.2' });
  }
}

function keyOf(authority: string, name: string): string {
  return `${authority} ${name}`;
}
