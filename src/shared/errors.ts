/**
 * Defines all error codes of the API, with the HTTP status and default message of each. `docs/errors.md` explains them.
 * Code throws {@link AppError} with a code. Only `control-plane/http/errors.ts` turns it into a response.
 */
export const ERROR_CODES = {
  INVALID_REQUEST: { status: 400, message: 'The request is malformed.' },
  UNAUTHENTICATED: { status: 401, message: 'A valid credential is required.' },
  /** The same as UNAUTHENTICATED, in the spelling of the routes under /v1/webhooks. */
  Unauthenticated: { status: 401, message: 'A valid credential is required.' },
  MFA_REQUIRED: { status: 401, message: 'A second factor is required.' },
  FORBIDDEN: { status: 403, message: 'This principal may not do that.' },
  SUDO_REQUIRED: { status: 403, message: 'Re-enter your password (POST /v1/auth/sudo) first.' },
  NOT_FOUND: { status: 404, message: 'No such resource.' },
  CONFLICT: { status: 409, message: 'The present state does not allow it.' },
  VM_NOT_RUNNING: { status: 409, message: 'The VM is not running. Start it first (POST …/vm).' },
  IDEMPOTENCY_IN_PROGRESS: {
    status: 409,
    message: 'A request with this Idempotency-Key is still being served.',
  },
  PRECONDITION_FAILED: { status: 412, message: 'The resource has changed since that ETag.' },
  PAYLOAD_TOO_LARGE: { status: 413, message: 'The request body is too large.' },
  UNSUPPORTED_MEDIA_TYPE: { status: 415, message: 'The request body must be application/json.' },
  RANGE_NOT_SATISFIABLE: { status: 416, message: 'The file has no byte in that range.' },
  MISDIRECTED_REQUEST: {
    status: 421,
    message:
      'Berth does not answer to this host name. Use its public URL, or have the operator add the name to BERTH_HOSTS.',
  },
  IDEMPOTENCY_KEY_REUSED: { status: 422, message: 'This Idempotency-Key was used for another request.' },
  ACCOUNT_LOCKED: { status: 423, message: 'Too many failed attempts. The account is locked for a while.' },
  RATE_LIMITED: { status: 429, message: 'Too many requests.' },
  QUOTA_EXCEEDED: { status: 429, message: 'A quota is used up.' },
  INTERNAL: { status: 500, message: 'Something went wrong on our side.' },
  BAD_GATEWAY: { status: 502, message: 'The VM gave no answer that can be passed on.' },
  UNAVAILABLE: { status: 503, message: 'A part of the service is unavailable. Try again shortly.' },
  DISK_FULL: { status: 507, message: "The guest's file system is full." },
} as const;

export type ErrorCode = keyof typeof ERROR_CODES;

export interface ErrorDetail {
  readonly field: string;
  readonly issue: string;
}

/** Of a refusal that does not pass by itself. Clients do not repeat a call for which they would have to wait so long. */
export const RETRY_LATER_S = 60;

export interface AppErrorOptions {
  /** For the caller; the code's default message when absent. Never holds inner detail. */
  readonly message?: string;
  /** For the log only. */
  readonly internal?: string;
  readonly details?: readonly ErrorDetail[];
  readonly retry_after_seconds?: number;
  readonly cause?: unknown;
}

/** An expected failure with a message for the caller and, apart from it, one for the log. */
export class AppError extends Error {
  override name = 'AppError';
  readonly code: ErrorCode;
  readonly internal: string | undefined;
  readonly details: readonly ErrorDetail[] | undefined;
  readonly retry_after_seconds: number | undefined;

  constructor(code: ErrorCode, options: AppErrorOptions = {}) {
    super(options.message ?? ERROR_CODES[code].message, { cause: options.cause });
    this.code = code;
    this.internal = options.internal;
    this.details = options.details;
    this.retry_after_seconds = options.retry_after_seconds;
  }
}

/** 400 INVALID_REQUEST about one field. */
export function invalid(field: string, issue: string): AppError {
  return new AppError('INVALID_REQUEST', { message: `${field}: ${issue}`, details: [{ field, issue }] });
}

/** The message of anything thrown, for logs. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}

/** The errno code (`ENOENT`, …) of a system error, if it is one. */
export function errnoOf(thrown: unknown): string | undefined {
  const code = thrown instanceof Error ? (thrown as NodeJS.ErrnoException).code : undefined;
  return typeof code === 'string' ? code : undefined;
}
