/** Lines of authorized_keys: a key, with the environment of its sessions before it where there is one. Pure. */
import { fingerprintOf } from '../../shared/ssh-fingerprint.ts';

/** `NAME=value` each; no value has a space or a quotation mark. */
export type SessionEnvironment = readonly string[];

/**
 * sshd reads the lines at each login, so a change needs no restart of sshd. It sets the variables for every user, shell and command,
 * with every distribution, and takes only names that its settings allow.
 */
export function linesWithEnvironment(
  keys: readonly string[],
  environment: SessionEnvironment,
): readonly string[] {
  if (environment.length === 0) return keys;
  const options = environment.map((each) => `environment="${each}"`).join(',');
  return keys.map((key) => `${options} ${key}`);
}

export function fingerprintOfLine(line: string): string {
  return fingerprintOf(keyOf(line));
}

/** Whether `lines` allow no key that `others` do not allow. */
export function keysAreAmong(lines: readonly string[], others: readonly string[]): boolean {
  const allowed = new Set(others.map(keyOf));
  return lines.every((line) => allowed.has(keyOf(line)));
}

function keyOf(line: string): string {
  return line.startsWith('environment="') ? line.slice(line.indexOf(' ') + 1) : line;
}
