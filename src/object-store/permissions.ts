/**
 * The requests that the control plane has signed for this process. Requests that come together, or while another question is under
 * way, are asked for together. Those to read are kept for as long as they are surely valid; one to write is used once.
 */
import { setImmediate as turn } from 'node:timers/promises';
import { backoffMs, pause } from '../shared/backoff.ts';
import { NotPermittedYetError } from './s3-failures.ts';
import { type ObjectRequest, SIGNED_MS, type SignedRequest } from './sign-request.ts';

/** Null: not permitted. @throws NotPermittedYetError when a retry may help */
export type AskPermissions = (
  requests: readonly ObjectRequest[],
) => Promise<readonly (SignedRequest | null)[]>;

/** Of one question. */
export const REQUESTS_MAX = 64;
const KEPT_MAX = 2_048;
/** A third is left for clocks that differ, and for the request itself. */
const KEPT_MS = (SIGNED_MS * 2) / 3;
/** How long a request waits for the control plane. */
const WAIT_MS = 60_000;

interface Waiting {
  readonly request: ObjectRequest;
  readonly resolve: (signed: SignedRequest | null) => void;
  readonly reject: (error: unknown) => void;
}

export class Permissions {
  readonly #ask: AskPermissions;
  readonly #waiting: Waiting[] = [];
  /** By method and key, the oldest first. */
  readonly #kept = new Map<string, { readonly signed: SignedRequest; readonly until_ms: number }>();
  #asking = false;

  constructor(ask: AskPermissions) {
    this.#ask = ask;
  }

  /** Null: not permitted. Waits while the control plane is away. @throws NotPermittedYetError, the signal's reason */
  async for(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest | null> {
    const until_ms = performance.now() + WAIT_MS;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#once(request, signal);
      } catch (error) {
        if (!(error instanceof NotPermittedYetError) || performance.now() > until_ms) throw error;
        await pause(backoffMs(attempt, 200, 2_000), signal);
        signal.throwIfAborted();
      }
    }
  }

  /** Drops what is kept for a key whose read has failed. */
  forget(key: string): void {
    for (const method of ['GET', 'HEAD']) this.#kept.delete(`${method} ${key}`);
  }

  async #once(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest | null> {
    const name = `${request.method} ${request.key}`;
    const kept = this.#kept.get(name);
    if (kept && performance.now() < kept.until_ms) return kept.signed;
    const until_ms = performance.now() + KEPT_MS;
    const signed = await this.#asked(request, signal);
    if (signed !== null && request.method !== 'PUT') this.#keep(name, signed, until_ms);
    return signed;
  }

  #keep(name: string, signed: SignedRequest, until_ms: number): void {
    this.#kept.delete(name);
    this.#kept.set(name, { signed, until_ms });
    if (this.#kept.size <= KEPT_MAX) return;
    for (const oldest of this.#kept.keys()) {
      this.#kept.delete(oldest);
      return;
    }
  }

  async #asked(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest | null> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<SignedRequest | null>();
    const leave = (): void => reject(signal.reason);
    signal.addEventListener('abort', leave, { once: true });
    this.#waiting.push({ request, resolve, reject });
    void this.#askAll();
    return promise.finally(() => signal.removeEventListener('abort', leave));
  }

  async #askAll(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    // Others of this turn join.
    await turn();
    while (this.#waiting.length > 0) await this.#askFor(this.#waiting.splice(0, REQUESTS_MAX));
    this.#asking = false;
  }

  async #askFor(batch: readonly Waiting[]): Promise<void> {
    try {
      const answers = await this.#ask(batch.map(({ request }) => request));
      for (const [i, { resolve, reject }] of batch.entries()) {
        const answer = answers[i];
        if (answer === undefined)
          reject(new NotPermittedYetError('the control plane has not answered everything'));
        else resolve(answer);
      }
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
}
