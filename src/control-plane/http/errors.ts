/**
 * Turns errors into responses, here alone: `{"error":{"code","message","request_id","details"}}`, or problem details for a caller
 * that prefers them.
 */
import { STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { AppError, ERROR_CODES, type ErrorCode, type ErrorDetail, errnoOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { isFull, isUnavailable } from '../db/pool.ts';
import { PROBLEM_TYPE, prefersProblem, problemOf } from './problem-details.ts';
import { detailsOf } from './validation-words.ts';

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
    .send(as_problem ? problemOf(body) : body);
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
