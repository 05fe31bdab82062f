import { AppError } from '../lib/errors.ts';
import { ALL_SCOPES, parseScope, type Scope } from './permissions.ts';
import type { Principal } from './principal.ts';

/** The scope as it is kept: `*`, or its parts in one order without doubles. @throws AppError INVALID_REQUEST */
export function canonicalScope(text: string): string {
  return text === '*' ? '*' : parseScope(text).join(' ');
}

/** Whether everything in `text` is in `held`; `*` stands for every scope there is. @throws AppError INVALID_REQUEST */
export function scopeWithin(held: ReadonlySet<Scope>, text: string): boolean {
  return parseScope(text).every((scope) => held.has(scope));
}

/** @throws AppError FORBIDDEN when the scope exceeds the caller's own, INVALID_REQUEST when it is none */
export function requireWithinOwn(principal: Principal, text: string): void {
  if (scopeWithin(principal.scopes, text)) return;
  const beyond = parseScope(text).filter((scope) => !principal.scopes.has(scope));
  const named = text === '*' && beyond.length === ALL_SCOPES.length ? '*' : beyond.join(' ');
  throw new AppError('FORBIDDEN', { message: `The requested scope exceeds your own: ${named}` });
}

/**
 * The same before a body is validated, so that 403 comes before 400: a scope that can be read and is beyond the
 * caller's is refused, whatever else is wrong. What cannot be read is left to the validation.
 */
export function refuseEscalation(principal: Principal, body: unknown): void {
  const scope = typeof body === 'object' && body !== null && 'scope' in body ? body.scope : undefined;
  if (typeof scope !== 'string') return;
  try {
    requireWithinOwn(principal, scope);
  } catch (error) {
    if (error instanceof AppError && error.code === 'INVALID_REQUEST') return;
    throw error;
  }
}
