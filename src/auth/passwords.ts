/**
 * Passwords: argon2id, 19 MiB, t=2, p=1 (OWASP's recommendation), 12 to 256 characters. At most four run at
 * once, so that a burst of logins cannot take the machine's memory. Where there is no account the same work
 * is done against a dummy, so that neither time nor load tells which addresses exist.
 */
import { hash, verify } from '@node-rs/argon2';

export const PASSWORD_MIN_LENGTH = 12;
export const PASSWORD_MAX_LENGTH = 256;

/** The library's default algorithm is argon2id; the unit test holds it to that. */
const OPTIONS = { memoryCost: 19_456, timeCost: 2, parallelism: 1 } as const;
const MAX_AT_ONCE = 4;
const MAX_WAITING = 200;

let running = 0;
const waiting: (() => void)[] = [];

export class PasswordsBusyError extends Error {
  override name = 'PasswordsBusyError';
}

async function bounded<T>(work: () => Promise<T>): Promise<T> {
  if (running >= MAX_AT_ONCE) {
    if (waiting.length >= MAX_WAITING) throw new PasswordsBusyError('too many password checks at once');
    await new Promise<void>((resolve) => waiting.push(resolve));
  } else {
    running += 1;
  }
  try {
    return await work();
  } finally {
    const next = waiting.shift();
    if (next) next();
    else running -= 1;
  }
}

export function hashPassword(password: string): Promise<string> {
  return bounded(() => hash(password, OPTIONS));
}

let dummy: Promise<string> | undefined;

/** Whether `password` is the one that `stored` came from; with null it does the same work and says no. */
export async function verifyPassword(stored: string | null, password: string): Promise<boolean> {
  dummy ??= hashPassword('no account has this password');
  const against = stored ?? (await dummy);
  const right = await bounded(() => verify(against, password));
  return stored !== null && right;
}
