/**
 * Defines `Failure`, the error that the adapter answers with: a code of the Connect protocol and its HTTP status.
 * `failureOf` maps the errors of Berth's client to it. Any other error becomes `internal`, without its message.
 */
import { BerthConnectionError, BerthError, OutputLostError, VmWaitError } from '../../../client/src/berth.ts';

/** Codes of the Connect protocol, and the status of an HTTP answer with each. */
const STATUS = {
  invalid_argument: 400,
  unauthenticated: 401,
  permission_denied: 403,
  not_found: 404,
  already_exists: 409,
  too_large: 413,
  resource_exhausted: 429,
  internal: 500,
  data_loss: 500,
  unimplemented: 501,
  unavailable: 502,
  deadline_exceeded: 504,
  no_space: 507,
} as const;
export type FailureCode = keyof typeof STATUS;

interface FailureOptions extends ErrorOptions {
  readonly retry_after_seconds?: number;
}

export class Failure extends Error {
  override readonly name = 'Failure';
  readonly code: FailureCode;
  readonly #retry_after_seconds: number | null;
  constructor(code: FailureCode, message: string, options: FailureOptions = {}) {
    super(message, options);
    this.code = code;
    this.#retry_after_seconds = options.retry_after_seconds ?? null;
  }

  get status(): number {
    return STATUS[this.code];
  }

  /** The package repeats a call after this time. */
  get retry_after_seconds(): number | null {
    return this.cause instanceof BerthError ? this.cause.retry_after_seconds : this.#retry_after_seconds;
  }

  /** The Connect protocol has no code of its own for these two. */
  get connect_code(): string {
    return this.code === 'too_large' || this.code === 'no_space' ? 'resource_exhausted' : this.code;
  }
}

const CODES: Readonly<Record<string, FailureCode>> = {
  INVALID_REQUEST: 'invalid_argument',
  UNAUTHENTICATED: 'unauthenticated',
  FORBIDDEN: 'permission_denied',
  NOT_FOUND: 'not_found',
  CONFLICT: 'already_exists',
  VM_NOT_RUNNING: 'unavailable',
  UNAVAILABLE: 'unavailable',
  RATE_LIMITED: 'resource_exhausted',
  QUOTA_EXCEEDED: 'resource_exhausted',
  DISK_FULL: 'no_space',
};

export function failureOf(error: unknown): Failure {
  if (error instanceof Failure) return error;
  if (error instanceof BerthError)
    return new Failure(CODES[error.code] ?? 'internal', error.message, { cause: error });
  if (error instanceof OutputLostError) return new Failure('data_loss', error.message, { cause: error });
  if (error instanceof BerthConnectionError || error instanceof VmWaitError)
    return new Failure('unavailable', error.message, { cause: error });
  return new Failure('internal', 'The adapter failed. Its log says why.', { cause: error });
}
