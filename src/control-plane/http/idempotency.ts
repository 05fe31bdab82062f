/** Reads the header Idempotency-Key. `control-plane/http/idempotency-claim.ts` implements it. */
import { createHash } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { canonicalJson } from '../../shared/canonical-json.ts';
import { invalid } from '../../shared/errors.ts';
import type { Principal } from '../identity/principal.ts';
import type { Claim } from './idempotency-claim.ts';

/** The header's key, bare or quoted; null if it is absent, empty or `null`. */
export function readIdempotencyKey(request: FastifyRequest): string | null {
  const header = request.headers['idempotency-key'];
  const text = (Array.isArray(header) ? header.join(',') : (header ?? '')).trim();
  if (text === '' || text === 'null') return null;
  const quoted = /^"(.*)"$/.exec(text);
  const key = quoted ? (quoted[1] ?? '') : text;
  if (!/^[\x20-\x7e]{1,255}$/.test(key))
    throw invalid('Idempotency-Key', 'must be 1 to 255 printable ASCII characters');
  return key;
}

/** A key belongs to the API key that sends it, by its id, which outlives rotation; in a session it belongs to the user. */
export function claimOf(request: FastifyRequest, principal: Principal, key: string): Claim {
  const { credential } = principal;
  const canonical = canonicalJson([request.params ?? {}, request.query ?? {}, request.body ?? {}]);
  return {
    org_id: principal.org_id,
    principal: credential.kind === 'session' ? credential.user_id : credential.id,
    route: `${request.method} ${request.routeOptions.url ?? ''}`,
    key,
    fingerprint: createHash('sha256').update(canonical).digest(),
  };
}
