/** Defines the errors that the client throws. A program reads `code`; `message` is for people. */
import type { ErrorBody, Vm } from './generated.ts';

export type ErrorCode = ErrorBody['error']['code'];
export type ErrorDetail = { readonly field: string; readonly issue: string };

export interface BerthErrorParts {
  readonly status: number;
  readonly code: ErrorCode | 'UNEXPECTED';
  readonly message: string;
  readonly request_id: string | null;
  readonly details?: readonly ErrorDetail[];
  readonly retry_after_seconds?: number | null;
}

/** The server refused the call or failed. `UNEXPECTED`: the answer is not from Berth's API. */
export class BerthError extends Error {
  override readonly name = 'BerthError';
  readonly status: number;
  readonly code: ErrorCode | 'UNEXPECTED';
  /** Quote it when you ask for help. The server's log contains it. */
  readonly request_id: string | null;
  readonly details: readonly ErrorDetail[];
  readonly retry_after_seconds: number | null;

  constructor({ status, code, message, request_id, details, retry_after_seconds }: BerthErrorParts) {
    super(message);
    this.status = status;
    this.code = code;
    this.request_id = request_id;
    this.details = details ?? [];
    this.retry_after_seconds = retry_after_seconds ?? null;
  }
}

/** No answer came: the server is not reachable, or the connection broke. */
export class BerthConnectionError extends Error {
  override readonly name = 'BerthConnectionError';
}

/** A VM did not reach the awaited state: it failed, was stopped, or the wait timed out. */
export class VmWaitError extends Error {
  override readonly name = 'VmWaitError';
  /** The VM as last seen. */
  readonly vm: Vm;
  constructor(message: string, vm: Vm) {
    super(message);
    this.vm = vm;
  }
}

/** A part of an exec's output is no longer kept: it was read too late, or too slowly. `output` can read on from `offset`. */
export class OutputLostError extends Error {
  override readonly name = 'OutputLostError';
  readonly lost_bytes: number;
  /** Of the first byte that is kept. */
  readonly offset: number;
  constructor(lost_bytes: number, offset: number) {
    super(
      `${lost_bytes} bytes of the output, from offset ${offset - lost_bytes} on, are no longer kept. Read on from offset ${offset}.`,
    );
    this.lost_bytes = lost_bytes;
    this.offset = offset;
  }
}

/** The webhook's signature or time is not valid. Do not trust it. */
export class WebhookVerificationError extends Error {
  override readonly name = 'WebhookVerificationError';
}
