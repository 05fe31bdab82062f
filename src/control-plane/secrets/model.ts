/** Defines which names, values and hosts a secret may have, and makes the placeholders that guests get. */
import { randomBytes } from 'node:crypto';
import { SECRET_HOSTS_MAX, SECRET_VALUE_MAX_BYTES } from '../../protocol/host-types.ts';
import { parseEntry } from '../../shared/egress-policy.ts';
import { type AppError, invalid } from '../../shared/errors.ts';

const SECRET_NAME_PATTERN = '^[A-Z][A-Z0-9_]{0,63}$';
export const SECRET_HOST_LENGTH_MAX = 255;

export function isName(name: string): boolean {
  return new RegExp(SECRET_NAME_PATTERN).test(name);
}

/** @throws AppError INVALID_REQUEST */
export function checkName(name: string): void {
  if (!isName(name))
    throw invalid('name', 'must be 1 to 64 of A to Z, 0 to 9 and _, and begin with a letter');
}

/** No message shows any of it. @throws AppError INVALID_REQUEST */
export function checkValue(value: string): void {
  if (value === '') throw invalid('value', 'must not be empty');
  if (Buffer.byteLength(value) > SECRET_VALUE_MAX_BYTES)
    throw invalid('value', `must have at most ${SECRET_VALUE_MAX_BYTES} bytes in UTF-8`);
  // Half of a surrogate pair has no UTF-8.
  if (/[\p{Cc}\p{Cs}]/u.test(value))
    throw invalid('value', 'must not contain control characters, such as a line break at its end');
}

/** The host names in their stored form, each once. @throws AppError INVALID_REQUEST naming the first that cannot be kept */
export function checkedHosts(given: readonly string[]): string[] {
  if (given.length === 0) throw invalid('hosts', 'must have at least one host name');
  if (given.length > SECRET_HOSTS_MAX) throw invalid('hosts', `has at most ${SECRET_HOSTS_MAX} host names`);
  return [...new Set(given.map(checkedHost))];
}

function checkedHost(text: string, index: number): string {
  const entry = parseEntry(text);
  if (typeof entry === 'string') throw refusedHost(text, index, entry);
  if (entry.kind === 'network') throw refusedHost(text, index, 'is an address; a secret is for host names');
  if (entry.port !== null) throw refusedHost(text, index, 'has a port; give the host name only');
  // No certificate has such a name.
  if (entry.name.includes('_')) throw refusedHost(text, index, 'has a _, which no host name of HTTPS has');
  return `${entry.below ? '*.' : ''}${entry.name}`;
}

function refusedHost(text: string, index: number, problem: string): AppError {
  return invalid(`hosts.${index}`, `${JSON.stringify(text.slice(0, 80))} ${problem}`);
}

/** What the guest gets in place of a value. */
export function newPlaceholder(): string {
  return `berth-secret-${randomBytes(16).toString('hex')}`;
}
