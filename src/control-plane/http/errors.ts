/**
 * Turns thrown errors into HTTP responses: `{"error":{"code","message","request_id","details"}}`, or problem details
 * (RFC 9457) for a caller whose `Accept` prefers them. Also has the patterns of texts in requests, and words for what
 * fails their validation.
 */
import { STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { AppError, ERROR_CODES, type ErrorCode, type ErrorDetail, errnoOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { isFull, isUnavailable } from '../db/pool.ts';

/** Problem details (RFC 9457), for callers whose `Accept` prefers them to JSON. */
export const PROBLEM_TYPE = 'application/problem+json';

export interface ProblemDetails extends Omit<ErrorBody['error'], 'message'> {
  /** `about:blank`: the kind of problem is that of the HTTP status; `code` tells it exactly. */
  readonly type: 'about:blank';
  /** The phrase of the HTTP status, as RFC 9457 asks for with `about:blank`. */
  readonly title: string;
  readonly status: number;
  /** The error's message. */
  readonly detail: string;
}

function problemDetails({ error: { message, ...members } }: ErrorBody): ProblemDetails {
  const { status } = ERROR_CODES[members.code];
  return { type: 'about:blank', title: STATUS_CODES[status] ?? '', status, detail: message, ...members };
}

/**
 * Whether the header Accept (RFC 9110, section 12.5.1) names problem details, with a higher weight than JSON. With the same
 * weight the first of the two counts. A wildcard means JSON.
 */
function prefersProblem(accept: string | undefined): boolean {
  if (!accept?.toLowerCase().includes(PROBLEM_TYPE)) return false;
  const ranges = accept.toLowerCase().split(',').map(rangeOf);
  const weightOf = (type: string) => ranges.find((range) => range.type === type)?.weight ?? 0;
  const [problem, json] = [weightOf(PROBLEM_TYPE), weightOf('application/json')];
  const first = ranges.find(({ type }) => type === PROBLEM_TYPE || type === 'application/json');
  return problem > json || (problem > 0 && problem === json && first?.type === PROBLEM_TYPE);
}

function rangeOf(text: string): { readonly type: string; readonly weight: number } {
  const [type = '', ...parameters] = text.split(';').map((part) => part.trim());
  const weight = parameters.find((parameter) => parameter.startsWith('q='))?.slice(2);
  return { type, weight: weight === undefined ? 1 : Number(weight) || 0 };
}

// Describes validation errors to callers; ajv describes them to the author of the schema.

export type Finding = NonNullable<FastifyError['validation']>[number];

/** A joiner belongs to the character before it: emoji and several scripts are written with them. Others of \p{C} hide or reorder. */
const JOINER = '[\\u200c\\u200d]?';
const PRINTABLE = `[^\\p{C}]${JOINER}`;

/** The patterns of requests. `OF_PATTERN` describes each in words. */
export const NAME_PATTERN = `^(?:[^\\p{C}\\p{Zl}\\p{Zp}]${JOINER})+$`;
export const EMAIL_PATTERN = '^[^\\s@\\p{C}]+@[^\\s@\\p{C}]+$';
export const WHOLE_NUMBER_PATTERN = '^[0-9]{1,4}$';
export const DNS_LABEL_PATTERN = '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$';
export const NO_NUL_PATTERN = '^[^\\0]*$';
/** PostgreSQL's text cannot hold NUL, and no searchable field holds a control character. */
export const PRINTABLE_PATTERN = `^(?:${PRINTABLE})*$`;
export const TOTP_PATTERN = '^[0-9]{3} ?[0-9]{3}$';
export const SERVICE_ACCOUNT_ID_PATTERN = '^sa_[0-9a-hjkmnp-tv-z]{26}$';
export const RESOURCE_ID_PATTERN = '^[a-z]+_[0-9a-z]+$';
export const IMAGE_PATTERN = '^[a-z0-9][a-z0-9.-]{0,62}$';
export const AUDIT_WORD_PATTERN = '^[A-Za-z0-9_.-]+$';
export const BASE64URL_PATTERN = '^[A-Za-z0-9_-]+$';
export const FILE_MODE_PATTERN = '^[0-7]{3,4}$';
export const LABEL_FILTER_PATTERN = `^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}(=(?:${PRINTABLE}){0,255})?$`;
export const OF_PATTERN: Readonly<Record<string, string>> = {
  [NAME_PATTERN]: 'must be printable characters and not empty',
  [EMAIL_PATTERN]: 'must be an e-mail address',
  [WHOLE_NUMBER_PATTERN]: 'must be a whole number of at most four digits',
  [DNS_LABEL_PATTERN]: 'must be 1 to 63 of a to z, 0 to 9 and -, without - at either end',
  [NO_NUL_PATTERN]: 'must not contain NUL',
  [PRINTABLE_PATTERN]: 'must not contain control characters, or others that are invisible',
  [TOTP_PATTERN]: 'must be six digits',
  [SERVICE_ACCOUNT_ID_PATTERN]: 'must be the id of a service account (sa_…)',
  [RESOURCE_ID_PATTERN]: 'must be the id of a resource, such as inst_…',
  [IMAGE_PATTERN]: 'must be 1 to 63 of a to z, 0 to 9, . and -, and begin with a letter or digit',
  [AUDIT_WORD_PATTERN]: 'must consist of letters, digits, _, . and -',
  [FILE_MODE_PATTERN]: 'must be three or four octal digits, such as 0644',
  [LABEL_FILTER_PATTERN]: 'must be the key of a label, or key=value',
  [BASE64URL_PATTERN]: 'must be base64url without padding',
};
const OF_LABEL_KEY =
  'must be 1 to 63 letters, digits, . _ / and -, and begin with a letter or digit, to be the key of a label';
const MAX_ISSUE_LENGTH = 500;

/**
 * The findings as an error's details, ten at most. If no alternative of a schema fits, the details are those of each
 * alternative, or the schema's description where it has one. `where`: the part of the request.
 */
export function detailsOf(findings: readonly Finding[], where: string): ErrorDetail[] {
  const form = findings.find((each) => each.keyword === 'anyOf' && each.instancePath === '');
  const wanted = descriptionOf(form);
  if (wanted !== undefined) return [{ field: where, issue: `has none of the accepted forms. ${wanted}` }];
  const telling = findings.filter((each) => each.keyword !== 'anyOf' && each.params['type'] !== 'null');
  return (telling.length > 0 ? telling : findings).slice(0, 10).map((each) => detailOf(each, where));
}

function detailOf(finding: Finding, where: string): ErrorDetail {
  const path = finding.instancePath
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
  const { params } = finding;
  const extra = params['additionalProperty'] ?? params['missingProperty'];
  const field = [...path, ...(typeof extra === 'string' ? [extra] : [])].join('.').slice(0, 200) || where;
  const issue = issueOf(finding, path) ?? finding.message ?? 'is invalid';
  return { field, issue: issue.slice(0, MAX_ISSUE_LENGTH) };
}

function issueOf({ keyword, params }: Finding, path: readonly string[]): string | undefined {
  switch (keyword) {
    case 'additionalProperties':
      return path.includes('labels') || path.includes('host_labels') ? OF_LABEL_KEY : 'is not a known field';
    case 'required':
      return 'is required';
    case 'enum':
      return `must be one of ${(params['allowedValues'] as readonly string[]).join(', ')}`;
    case 'const':
      return `must be ${JSON.stringify(params['allowedValue'])}`;
    case 'pattern':
      return OF_PATTERN[params['pattern'] as string];
    case 'minLength':
      return params['limit'] === 1 ? 'must not be empty' : undefined;
    default:
      return undefined;
  }
}

function descriptionOf(finding: Finding | undefined): string | undefined {
  const { parentSchema } = (finding ?? {}) as { readonly parentSchema?: { readonly description?: string } };
  return parentSchema?.description;
}

export interface ErrorBody {
  readonly error: {
    readonly code: ErrorCode;
    readonly message: string;
    readonly request_id: string;
    readonly details?: readonly ErrorDetail[];
  };
}

const FROM_FASTIFY: Record<string, AppError> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: new AppError('UNSUPPORTED_MEDIA_TYPE'),
  FST_ERR_CTP_BODY_TOO_LARGE: new AppError('PAYLOAD_TOO_LARGE'),
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: new AppError('INVALID_REQUEST', {
    message: 'Content-Length does not match the body.',
  }),
  FST_ERR_CTP_INVALID_JSON_BODY: new AppError('INVALID_REQUEST', { message: 'The body is not valid JSON.' }),
};

/** The error that the caller gets for anything thrown. Only the public message of an AppError leaves the server. */
export function toAppError(error: unknown): AppError {
  if (error instanceof AppError) return error;
  if (isUnavailable(error)) {
    return new AppError('UNAVAILABLE', {
      // With a full disk, reads still work.
      message: isFull(error)
        ? 'The database has no room left on its disk. Try again later; it recovers by itself once there is room.'
        : 'The database is unavailable. Try again shortly.',
      retry_after_seconds: 2,
      cause: error,
    });
  }
  const fastify = error as Partial<FastifyError>;
  const known = fastify.code === undefined ? undefined : FROM_FASTIFY[fastify.code];
  if (known) return known;
  if (fastify.validation) return fromValidation(fastify);
  if (fastify.statusCode === 400) return new AppError('INVALID_REQUEST', { cause: error });
  return new AppError('INTERNAL', { cause: error });
}

function fromValidation(error: Partial<FastifyError>): AppError {
  const where = error.validationContext === 'querystring' ? 'query' : (error.validationContext ?? 'request');
  const details = detailsOf(error.validation ?? [], where);
  const first = details[0];
  return new AppError('INVALID_REQUEST', {
    message: first ? `${where}: ${first.field} ${first.issue}` : `The ${where} is malformed.`,
    details,
  });
}

/** The code of a 401, which the routes of webhooks spell in their own way. */
export function unauthenticatedCode(path: string): 'UNAUTHENTICATED' | 'Unauthenticated' {
  return /^\/v1\/webhooks(\/|$)/.test(path) ? 'Unauthenticated' : 'UNAUTHENTICATED';
}

/** Sends an error and logs it: the caller gets the public message, the log gets the internal one. */
export function sendError(thrown: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const error = toAppError(thrown);
  const code =
    error.code === 'UNAUTHENTICATED' ? unauthenticatedCode(request.routeOptions.url ?? '') : error.code;
  const { status } = ERROR_CODES[code];
  if (status >= 500) {
    const level = code === 'INTERNAL' ? 'error' : 'warn';
    request.log[level](
      { err: thrown, internal: error.internal },
      `${request.method} ${request.routeOptions.url ?? '?'}: ${code}`,
    );
  }
  if (status === 401) reply.header('www-authenticate', 'Bearer');
  if (error.retry_after_seconds !== undefined) reply.header('retry-after', String(error.retry_after_seconds));
  const body: ErrorBody = {
    error: {
      code,
      message: error.message,
      request_id: request.id,
      ...(error.details ? { details: error.details } : {}),
    },
  };
  const as_problem = prefersProblem(request.headers.accept);
  reply
    .status(status)
    .type(as_problem ? PROBLEM_TYPE : 'application/json; charset=utf-8')
    // Not by the route's serialiser, because errors have the same shape on every route.
    .serializer(JSON.stringify)
    .send(as_problem ? problemDetails(body) : body);
}

/** Answers bytes that are not an HTTP request, or one whose head is too large or too slow, and disconnects. */
export function sendMalformed(error: Error, socket: Socket, request_id: string): void {
  if (errnoOf(error) === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  endWith(socket, new AppError('INVALID_REQUEST'), request_id);
}

/**
 * Answers a refused request for an upgrade, logs it, and disconnects. Node has detached the socket: nobody reads it, no
 * timeout ends it, and a closing server would wait for the peer.
 */
export function refuseUpgrade(thrown: unknown, socket: Duplex, request_id: string, log: Log): void {
  const error = toAppError(thrown);
  const { status } = ERROR_CODES[error.code];
  log[status >= 500 ? 'warn' : 'info']({ err: thrown, request_id, status }, 'an upgrade was refused');
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  socket.once('finish', () => socket.destroy());
  endWith(socket, error, request_id);
}

function endWith(socket: Duplex, error: AppError, request_id: string): void {
  const { code, message, retry_after_seconds } = error;
  const { status } = ERROR_CODES[code];
  const body: ErrorBody = { error: { code, message, request_id } };
  const text = JSON.stringify(body);
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\nContent-Type: application/json; charset=utf-8\r\n` +
      `Cache-Control: no-store\r\nX-Request-Id: ${request_id}\r\n` +
      (status === 401 ? 'WWW-Authenticate: Bearer\r\n' : '') +
      (retry_after_seconds === undefined ? '' : `Retry-After: ${retry_after_seconds}\r\n`) +
      `Content-Length: ${Buffer.byteLength(text)}\r\nConnection: close\r\n\r\n${text}`,
  );
}
