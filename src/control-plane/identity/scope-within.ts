import { AppError } from '../../shared/errors.ts';
import { ALL_SCOPES, parseScope, type Scope } from './permissions.ts';
import type { Principal } from './principal.ts';

/** The stored form of a scope: `*`, or its parts in a fixed order without duplicates. @throws AppError INVALID_REQUEST */
export function canonicalScope(text: string): string {
  return text === '*' ? '*' : parseScope(text).join(' ');
}

/** Whether everything in `text` is in `held`; `*` stands for every scope there is. @throws AppError INVALID_REQUEST */
export function scopeWithin(held: ReadonlySet<Scope>, text: string): boolean {
  return parseScope(text).every((scope) => held.has(scope));
}

/** @throws AppError FORBIDDEN if the scope exceeds the caller's, INVALID_REQUEST if it is not a scope */
export function requireWithinOwn(principal: Principal, text: string): void {
  if (scopeWithin(principal.scopes, text)) return;
  const beyond = parseScope(text).filter((scope) => !principal.scopes.has(scope));
  const named = text === '*' && beyond.length === ALL_SCOPES.length ? '*' : beyond.join(' ');
  throw new AppError('FORBIDDEN', { message: `The requested scope exceeds your own: ${named}` });
}

/**
 * The same before the body is validated, so that 403 comes before 400: a scope beyond the caller's is rejected whatever
 * else is wrong. An unreadable scope is left to the validation.
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
