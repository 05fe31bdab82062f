/**
 * Classifies failed S3 requests. Only status and error code are passed on: the server's texts repeat key ids and signed
 * strings.
 */
import { S3ServiceException } from '@aws-sdk/client-s3';
import { errnoOf } from '../shared/errors.ts';

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

/** Undefined for an error of our own, which came neither from the store nor from the network. */
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
