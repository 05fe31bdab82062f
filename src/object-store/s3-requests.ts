/**
 * Requests to S3 with bounded retries: a pause with full jitter before each retry, a time limit for each attempt, and a limit
 * on concurrent requests. The SDK's own retries are off, because an attempt here includes reading the response body.
 *
 * Invariant: the result of `perform` comes completely from one attempt. An aborted signal ends an attempt, a pause and a
 * wait at once.
 */
import { backoffMs, pause } from '../shared/backoff.ts';
import { Semaphore } from '../shared/semaphore.ts';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  ObjectStoreUnavailableError,
} from './object-store.ts';
import { failureOf, type S3Failure } from './s3-failures.ts';

export interface S3Patience {
  readonly attempts: number;
  /** The maximum pause before the first retry. It doubles with each further retry. */
  readonly backoff_base_ms: number;
  readonly backoff_max_ms: number;
  /** After this time no retry starts. */
  readonly give_up_ms: number;
  /** The time limit of one attempt. */
  readonly attempt_timeout_ms: number;
  readonly connect_timeout_ms: number;
  /** A connection without progress for this long is closed. */
  readonly stall_timeout_ms: number;
  /** Concurrent requests, and so connections. */
  readonly requests_max: number;
}

export const PATIENCE: S3Patience = {
  attempts: 5,
  backoff_base_ms: 300,
  backoff_max_ms: 5_000,
  give_up_ms: 30_000,
  attempt_timeout_ms: 300_000,
  connect_timeout_ms: 5_000,
  stall_timeout_ms: 10_000,
  requests_max: 48,
};

/** The store does not support `If-None-Match`. */
export class NoConditionsError extends Error {
  override name = 'NoConditionsError';
}

export class S3Requests {
  readonly #description: string;
  readonly #patience: S3Patience;
  /** The client's pool of connections does not bound its own queue. */
  readonly #permits: Semaphore;

  constructor(description: string, patience: S3Patience) {
    this.#description = description;
    this.#patience = patience;
    this.#permits = new Semaphore(patience.requests_max);
  }

  /**
   * Runs `work`, which gets the signal of one attempt, and retries it after temporary failures.
   * @throws ObjectExistsError, ObjectNotFoundError, ObjectRangeError, ObjectStoreUnavailableError,
   *   NoConditionsError; the signal's reason; errors of `work` itself
   */
  async perform<T>(
    what: string,
    work: (signal: AbortSignal) => Promise<T>,
    signal?: AbortSignal,
    attempts = this.#patience.attempts,
  ): Promise<T> {
    const { backoff_base_ms, backoff_max_ms, give_up_ms } = this.#patience;
    const give_up_at = performance.now() + give_up_ms;
    for (let attempt = 0; ; attempt++) {
      const failure = await this.#attempt(work, signal);
      if ('value' in failure) return failure.value;
      signal?.throwIfAborted();
      const last = attempt + 1 >= attempts || performance.now() > give_up_at;
      if (failure.kind !== 'passing' || last) throw this.#errorFor(what, failure, attempt + 1);
      await pause(backoffMs(attempt, backoff_base_ms, backoff_max_ms), signal);
    }
  }

  async #attempt<T>(
    work: (signal: AbortSignal) => Promise<T>,
    signal: AbortSignal | undefined,
  ): Promise<{ value: T } | S3Failure> {
    const { attempt_timeout_ms } = this.#patience;
    await this.#permits.acquire(signal);
    const stop = new AbortController();
    const end = (): void => stop.abort(signal?.reason);
    const deadline = setTimeout(end, attempt_timeout_ms);
    signal?.addEventListener('abort', end, { once: true });
    try {
      signal?.throwIfAborted();
      return { value: await work(stop.signal) };
    } catch (error) {
      signal?.throwIfAborted();
      if (stop.signal.aborted) return { kind: 'passing', reason: `not done within ${attempt_timeout_ms} ms` };
      const failure = failureOf(error);
      if (!failure) throw error;
      return failure;
    } finally {
      clearTimeout(deadline);
      signal?.removeEventListener('abort', end);
      this.#permits.release();
    }
  }

  #errorFor(what: string, failure: S3Failure, attempts: number): Error {
    switch (failure.kind) {
      case 'exists':
        return new ObjectExistsError(`${what} already exists`);
      case 'missing':
        return new ObjectNotFoundError(`${what} does not exist`);
      case 'range':
        return new ObjectRangeError(`${what}: the range starts after its end`);
      case 'no conditions':
        return new NoConditionsError(failure.reason);
      case 'refused':
        return this.unavailable(failure.reason);
      case 'passing':
        return this.unavailable(
          attempts > 1 ? `${failure.reason}, ${attempts} times` : failure.reason,
          failure.cause,
        );
    }
  }

  unavailable(reason: string, cause?: unknown): ObjectStoreUnavailableError {
    return new ObjectStoreUnavailableError(`${this.#description}: ${reason}`, { reason, cause });
  }
}
