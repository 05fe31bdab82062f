/**
 * The gate's side of its certificates: one key for all of them, made at its start and never told to anyone. The agent makes the
 * certificate for a name on request; it is kept until it is old, or the authority another. Bounded.
 */
import { generateKeyPairSync } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import { LEAF_AHEAD_MS } from './gate-messages.ts';

const KEPT_MAX = 1_000;
/** Half of its life is left for guests whose clock is ahead. */
const USE_MS = LEAF_AHEAD_MS / 2;
const ANSWER_MS = 5_000;

interface Kept {
  readonly context: Promise<SecureContext | null>;
  readonly until_ms: number;
}

export class LeafContexts {
  readonly #ask: (name: string, public_key: string) => void;
  readonly #private_key: string;
  readonly #public_key: string;
  readonly #kept = new Map<string, Kept>();
  readonly #asked = new Map<string, (certificate: string | null) => void>();
  #authority: string | null = null;

  /** `ask`: the answer comes by {@link take}. */
  constructor(ask: (name: string, public_key: string) => void) {
    this.#ask = ask;
    const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    this.#private_key = privateKey.export({ type: 'pkcs8', format: 'pem' }) as string;
    this.#public_key = publicKey.export({ type: 'spki', format: 'der' }).toString('base64');
  }

  setAuthority(fingerprint: string | null): void {
    if (fingerprint !== this.#authority) this.#kept.clear();
    this.#authority = fingerprint;
  }

  /** null: the agent made none. */
  contextFor(name: string): Promise<SecureContext | null> {
    const kept = this.#kept.get(name);
    if (kept && kept.until_ms > performance.now()) return kept.context;
    const context = this.#make(name);
    this.#kept.delete(name);
    this.#kept.set(name, { context, until_ms: performance.now() + USE_MS });
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= KEPT_MAX) break;
      this.#kept.delete(oldest);
    }
    void context.then((made) => {
      if (made === null && this.#kept.get(name)?.context === context) this.#kept.delete(name);
    });
    return context;
  }

  take(name: string, certificate: string | null): void {
    this.#asked.get(name)?.(certificate);
  }

  async #make(name: string): Promise<SecureContext | null> {
    const { promise, resolve } = Promise.withResolvers<string | null>();
    this.#asked.set(name, resolve);
    const late = setTimeout(() => resolve(null), ANSWER_MS);
    this.#ask(name, this.#public_key);
    const cert = await promise;
    clearTimeout(late);
    if (this.#asked.get(name) === resolve) this.#asked.delete(name);
    return cert === null
      ? null
      : createSecureContext({ key: this.#private_key, cert, minVersion: 'TLSv1.2' });
  }
}
