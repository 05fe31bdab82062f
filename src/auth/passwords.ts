/**
 * Passwords: argon2id, 19 MiB, t=2, p=1 (OWASP's recommendation), 12 to 256 characters. At most four run at
 * once, so that a burst of logins cannot take the machine's memory. Where there is no account the same work
 * is done against a dummy, so that neither time nor load tells which addresses exist.
 */
import { channel } from 'node:diagnostics_channel';
import { hash, verify } from '@node-rs/argon2';
import { AppError } from '../lib/errors.ts';

export const PASSWORD_MIN_LENGTH = 12;
export const PASSWORD_MAX_LENGTH = 256;

/** The library's default algorithm is argon2id; the unit test holds it to that. */
const OPTIONS = { memoryCost: 19_456, timeCost: 2, parallelism: 1 } as const;
const MAX_AT_ONCE = 4;
const MAX_WAITING = 200;

let running = 0;
const waiting: (() => void)[] = [];

/** A message for each verify that runs, also one against the dummy: whoever counts them subscribes. */
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

/** Made once; where there was no room for it, by the next that needs it. */
function dummyHash(): Promise<string> {
  dummy ??= hashPassword('no account has this password').catch((error: unknown) => {
    dummy = undefined;
    throw error;
  });
  return dummy;
}

/** Whether `password` is the one that `stored` came from; with null it does the same work and says no. @throws AppError UNAVAILABLE */
export async function verifyPassword(stored: string | null, password: string): Promise<boolean> {
  const against = stored ?? (await dummyHash());
  const right = await bounded(() => {
    verifies.publish({});
    return verify(against, password);
  });
  return stored !== null && right;
}
