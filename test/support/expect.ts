/** Asserts that a response of the API is an error with the common body. */
import assert from 'node:assert/strict';
import { ERROR_CODES, type ErrorCode } from '../../src/shared/errors.ts';
import type { Answer, ErrorBody } from './client.ts';

/** Asserts that the response is any error, as {@link assertError} knows them. */
export function assertAnyError(answer: Answer<ErrorBody>): void {
  const { code } = answer.body.error;
  assert.ok(isErrorCode(code), answer.text);
  assertError(answer, code);
}

const isErrorCode = (code: string): code is ErrorCode => Object.hasOwn(ERROR_CODES, code);

/** Asserts an error response: the code's status, the common body, and the request's id in header and body. */
export function assertError(answer: Answer<unknown>, code: ErrorCode, message?: RegExp): ErrorBody['error'] {
  assert.equal(answer.status, ERROR_CODES[code].status, `${answer.status} ${answer.text}`);
  const { error } = answer.body as ErrorBody;
  assert.equal(error.code, code, answer.text);
  assert.deepEqual(Object.keys(answer.body as object), ['error']);
  const known = ['code', 'message', 'request_id', 'details'];
  assert.deepEqual(
    Object.keys(error).filter((name) => !known.includes(name)),
    [],
  );
  assert.match(error.request_id, /^req_[0-9a-f]{24}$/);
  assert.equal(answer.headers['x-request-id'], error.request_id);
  assert.ok(error.message.length > 0);
  if (message) assert.match(error.message, message);
  if (answer.status === 401) assert.equal(answer.headers['www-authenticate'], 'Bearer');
  return error;
}

/** An error without its request id, to compare the errors that callers see. */
export function withoutRequestId(answer: Answer<unknown>): unknown {
  const { error } = answer.body as ErrorBody;
  return { ...error, request_id: undefined, status: answer.status };
}
