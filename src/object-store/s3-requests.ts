/**
 * Sends requests to S3 with bounded retries: a pause with full jitter before each retry, a time limit for each attempt,
 * and a limit on concurrent requests. The SDK's own retries are off, because an attempt here includes reading the
 * response body. Also makes the S3 clients, and classifies failures.
 *
 * Invariant: the result of `perform` comes completely from one attempt. An aborted signal ends an attempt, a pause and
 * a wait at once.
 */
import { S3Client, type S3ClientConfig, S3ServiceException } from '@aws-sdk/client-s3';
import { Semaphore } from '../shared/concurrency.ts';
import { errnoOf } from '../shared/errors.ts';
import { backoffMs, pause } from '../shared/retry.ts';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  ObjectStoreUnavailableError,
} from './object-store.ts';

export type S3Failure =
  /** The key is taken. */
  | { readonly kind: 'exists' }
  | { readonly kind: 'missing' }
  /** The range starts after the object's end. */
  | { readonly kind: 'range' }
  /** The store refuses `If-None-Match`. */
  | { readonly kind: 'no conditions'; readonly reason: string }
  /** A retry may succeed. */
  | { readonly kind: 'passing'; readonly reason: string; readonly cause?: unknown }
  /** A retry does not help. */
  | { readonly kind: 'refused'; readonly reason: string };

/** A wrong response: cut, too long, or another range. A retry may help. */
export class WrongAnswerError extends Error {
  override name = 'WrongAnswerError';
}

/** The control plane, which signs the requests, does not answer. */
export class NotPermittedYetError extends Error {
  override name = 'NotPermittedYetError';
}

const PASSING_STATUS: ReadonlySet<number> = new Set([408, 409, 425, 429, 500, 502, 503, 504]);
const PASSING_CODES: ReadonlySet<string> = new Set([
  // The body that arrived is incomplete or differs from the signed one.
  ...['XAmzContentSHA256Mismatch', 'BadDigest', 'IncompleteBody', 'RequestTimeout'],
  // The retry is signed anew, with the response's time and fresh credentials.
  ...[
    'RequestTimeTooSkewed',
    'RequestExpired',
    'ExpiredToken',
    'ExpiredTokenException',
    'TokenRefreshRequired',
  ],
  ...['SlowDown', 'Throttling', 'ThrottlingException', 'RequestLimitExceeded', 'InternalError'],
]);
const MADE_UP: ReadonlySet<string> = new Set([
  'Error',
  'SyntaxError',
  'TypeError',
  'Unknown',
  'UnknownError',
]);
const REFUSED_WORDS: Readonly<Record<string, string>> = {
  NoSuchBucket: 'the bucket does not exist',
  AccessDenied: 'these credentials may not do that',
  InvalidAccessKeyId: 'the access key id is not known there',
  SignatureDoesNotMatch: 'the secret access key is wrong',
  InvalidToken: 'the session token is wrong',
  QuotaExceeded: 'the quota is used up',
  PermanentRedirect: 'the bucket is in another region or at another endpoint',
  AuthorizationHeaderMalformed: 'the bucket is in another region',
};
/** Names of OpenSSL and of Node. */
const CERTIFICATE = /CERT|^UNABLE_TO_(GET|VERIFY)_/;
const NETWORK_WORDS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens there',
  ECONNRESET: 'the connection broke',
  EPIPE: 'the connection broke',
  ENOTFOUND: 'its name is not known',
  EAI_AGAIN: 'its name cannot be looked up now',
  EHOSTUNREACH: 'it cannot be reached',
  ENETUNREACH: 'it cannot be reached',
};

/**
 * Classifies a failed request. Only status and error code are passed on: the server's texts repeat key ids and signed strings.
 * Undefined for an error of our own, which came neither from the store nor from the network.
 */
export function failureOf(error: unknown): S3Failure | undefined {
  if (!(error instanceof Error)) return undefined;
  if (error instanceof WrongAnswerError || error instanceof NotPermittedYetError)
    return { kind: 'passing', reason: error.message };
  if (error.name === 'CredentialsProviderError')
    return { kind: 'refused', reason: 'no credentials were found' };
  const status = statusOf(error);
  if (status !== undefined) return failureOfAnswer(status, error.name);
  if (error.name === 'TimeoutError') return { kind: 'passing', reason: 'no answer in time', cause: error };
  const code = errnoOf(error);
  if (code === undefined || code.startsWith('ERR_INVALID_')) return undefined;
  if (CERTIFICATE.test(code)) return { kind: 'refused', reason: `its certificate is not trusted (${code})` };
  return {
    kind: 'passing',
    reason: `${NETWORK_WORDS[code] ?? 'it cannot be reached'} (${code})`,
    cause: error,
  };
}

function statusOf(error: Error): number | undefined {
  const { $metadata, $response } = error as Partial<S3ServiceException>;
  const status = $metadata?.httpStatusCode ?? $response?.statusCode;
  // An unreadable response, for example of a proxy, still has a status.
  return status ?? (error instanceof S3ServiceException ? 500 : undefined);
}

function failureOfAnswer(status: number, name: string): S3Failure {
  // A response to HEAD has no body, so the SDK invents a code.
  const coded = /^[A-Za-z][A-Za-z0-9]{1,63}$/.test(name) && !MADE_UP.has(name);
  const code = coded ? name : 'no code';
  const answered = `${status} ${code}`;
  if (status === 412) return { kind: 'exists' };
  if (status === 416) return { kind: 'range' };
  if (status === 501) return { kind: 'no conditions', reason: answered };
  if (status === 404 && code !== 'NoSuchBucket') return { kind: 'missing' };
  // An unreadable success was garbled in transit; a refusal without a code may be temporary.
  const may_pass = coded ? PASSING_CODES.has(code) : status < 300 || status === 400 || status === 403;
  if (PASSING_STATUS.has(status) || may_pass) {
    return { kind: 'passing', reason: `it answered ${answered}` };
  }
  const words = REFUSED_WORDS[code] ?? (status === 403 ? 'access is refused' : 'it refuses the request');
  return { kind: 'refused', reason: `${words} (${answered})` };
}

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

export interface S3Settings {
  readonly bucket: string;
  /** Null: Amazon's endpoint of the region. */
  readonly endpoint: string | null;
  readonly region: string;
  /** Null, with the secret null too: the SDK's default chain finds the credentials (profiles, roles, …). */
  readonly access_key_id: string | null;
  readonly secret_access_key: string | null;
  readonly session_token: string | null;
}

/** The client of Amazon's library, for any S3 endpoint. */
export function clientFor(settings: S3Settings, bounds: S3Patience): S3Client {
  const { endpoint, region, access_key_id, secret_access_key, session_token } = settings;
  return new S3Client({
    ...common(bounds),
    region,
    ...(endpoint === null ? {} : { endpoint }),
    ...(access_key_id === null || secret_access_key === null
      ? {}
      : {
          credentials: {
            accessKeyId: access_key_id,
            secretAccessKey: secret_access_key,
            ...(session_token === null ? {} : { sessionToken: session_token }),
          },
        }),
  });
}

/** A client for requests that somebody else signs ({@link sendAs}). It has no credentials, and knows no store. */
export function clientWithoutCredentials(bounds: S3Patience): S3Client {
  return new S3Client({
    ...common(bounds),
    ...{ region: 'none', endpoint: 'http://none.invalid' },
    credentials: { accessKeyId: 'none', secretAccessKey: 'none' },
    signer: { sign: async (request) => request },
  });
}

function common(bounds: S3Patience): S3ClientConfig {
  const connections = { keepAlive: true, maxSockets: bounds.requests_max, maxFreeSockets: 16 };
  return {
    // A bucket in the host name needs DNS names and certificates that few self-hosted stores have.
    forcePathStyle: true,
    // Bodies are signed and segments have hashes. Some stores do not support trailers.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    // It would open a new connection for every larger body.
    expectContinueHeader: false,
    maxAttempts: 1,
    // The SDK would warn about each failed PUT that it does not retry. We retry.
    logger: { debug: silent, info: silent, warn: silent, error: silent },
    requestHandler: {
      connectionTimeout: bounds.connect_timeout_ms,
      socketTimeout: bounds.stall_timeout_ms,
      httpAgent: connections,
      httpsAgent: connections,
    },
  };
}

function silent(): void {}
