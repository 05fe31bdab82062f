/** ETag and If-Match (RFC 9110, sections 8.8.3 and 13.1.1): a change is refused if the resource has changed since. */
import { hash } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { assert } from '../../shared/assert.ts';
import { canonicalJson } from '../../shared/canonical-json.ts';
import { AppError } from '../../shared/errors.ts';

/** A strong validator of the fields of a resource that calls can change. */
export function etagOf(value: unknown): string {
  return `"${hash('sha256', canonicalJson(value), 'base64url').slice(0, 22)}"`;
}

export function setEtag(reply: FastifyReply, value: unknown): void {
  assert(reply.request.routeOptions.config.etag === true, 'the route declares its ETag');
  reply.header('etag', etagOf(value));
}

/** @throws AppError PRECONDITION_FAILED where If-Match names another state */
export function requireMatch(request: FastifyRequest, value: unknown): void {
  const header = request.headers['if-match'];
  if (header === undefined) return;
  const wanted = header.split(',').map((tag) => tag.trim());
  if (!wanted.includes('*') && !wanted.includes(etagOf(value))) throw new AppError('PRECONDITION_FAILED');
}
