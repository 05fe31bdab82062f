/**
 * Passwords: argon2id, 19 MiB, t=2, p=1 (OWASP's recommendation), 12 to 256 characters. At most four hashes run at
 * once, so that a burst of logins cannot exhaust memory. Without an account the same work runs against a dummy hash, so
 * that neither time nor load reveals which addresses exist.
 */
import { channel } from 'node:diagnostics_channel';
import { hash, verify } from '@node-rs/argon2';
import { AppError } from '../../shared/errors.ts';

export const PASSWORD_MIN_LENGTH = 12;
export const PASSWORD_MAX_LENGTH = 256;

/** The library's default algorithm is argon2id; a unit test checks it. */
const OPTIONS = { memoryCost: 19_456, timeCost: 2, parallelism: 1 } as const;
const MAX_AT_ONCE = 4;
const MAX_WAITING = 200;

let running = 0;
const waiting: (() => void)[] = [];

/** Publishes each verification, also of the dummy, for those who count them. */
export const VERIFY_CHANNEL = 'berth.password.verify';
const verifies = channel(VERIFY_CHANNEL);

/** @throws AppError UNAVAILABLE when too many wait */
async function bounded<T>(work: () => Promise<T>): Promise<T> {
  if (running >= MAX_AT_ONCE) {
    if (waiting.length >= MAX_WAITING) throw busy();
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

function busy(): AppError {
  return new AppError('UNAVAILABLE', {
    retry_after_seconds: 1,
    internal: 'too many password checks at once',
  });
}

/** @throws AppError UNAVAILABLE */
export function hashPassword(password: string): Promise<string> {
  return bounded(() => hash(password, OPTIONS));
}

let dummy: Promise<string> | undefined;

/** Created once; if too many hashes were running, the next caller creates it. */
function dummyHash(): Promise<string> {
  dummy ??= hashPassword('no account has this password').catch((error: unknown) => {
    dummy = undefined;
    throw error;
  });
  return dummy;
}

/** Whether `password` matches `stored`; null does the same work and returns false. @throws AppError UNAVAILABLE */
export async function verifyPassword(stored: string | null, password: string): Promise<boolean> {
  const against = stored ?? (await dummyHash());
  const right = await bounded(() => {
    verifies.publish({});
    return verify(against, password);
  });
  return stored !== null && right;
}
