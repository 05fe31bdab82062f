/**
 * Defines the errors that commands throw for the user to read, and the exit codes of the command line. docs/cli.md
 * lists the codes (`EXIT_MEANINGS`). `ssh` and `exec` exit with the code of the program that they ran.
 */
import { BerthConnectionError, BerthError, VmWaitError } from '../../client/src/berth.ts';

interface Help {
  readonly next?: string | null;
  /** An option of the command with which it would have worked: the error prints the whole command. */
  readonly again?: string | null;
  readonly exit_code?: number;
}

/** A command's failure, for the person who typed it; `next` is a command or step that helps. */
export class CommandError extends Error {
  override name = 'CommandError';
  readonly next: string | null;
  readonly again: string | null;
  readonly exit_code: number;

  constructor(message: string, { next = null, again = null, exit_code = 1 }: Help = {}) {
    super(message);
    this.next = next;
    this.again = again;
    this.exit_code = exit_code;
  }
}

/** Another failure, of one of several instances that a command names. */
export class InstanceError extends Error {
  override name = 'InstanceError';
  readonly instance: string;
  override readonly cause: unknown;

  constructor(instance: string, cause: unknown) {
    super(`${instance}: failed`);
    this.instance = instance;
    this.cause = cause;
  }
}

/** Unknown words or options. */
export class UsageError extends Error {
  override name = 'UsageError';
}

export const EXIT = {
  done: 0,
  failed: 1,
  usage: 2,
  not_found: 3,
  not_authorised: 4,
  state: 5,
  unavailable: 6,
  limit: 7,
  damaged: 8,
  output_lost: 123,
  timed_out: 124,
  cut: 125,
  interrupted: 130,
} as const;

export const EXIT_MEANINGS: readonly (readonly [code: number, meaning: string])[] = [
  [EXIT.done, 'done'],
  [EXIT.failed, 'failed, for any other reason'],
  [
    EXIT.usage,
    'invalid arguments, options or settings; or a question (a password, a confirmation), and no terminal to ask on',
  ],
  [EXIT.not_found, 'not found, or no access'],
  [EXIT.not_authorised, 'not logged in, wrong password, or not allowed'],
  [
    EXIT.state,
    'the current state does not allow it, the name is taken, or the resource has changed meanwhile',
  ],
  [
    EXIT.unavailable,
    'the server (or, on the server, its database) does not answer or is temporarily unavailable',
  ],
  [EXIT.limit, 'too many requests, or a quota is used up'],
  [EXIT.damaged, 'objects of a disk, or of a backup, are damaged or missing'],
  [
    EXIT.output_lost,
    'a part of the output of the command of `berth exec` is no longer kept; the command runs on, or has ended',
  ],
  [EXIT.timed_out, 'the command of `berth exec` was killed at its timeout'],
  [EXIT.cut, 'the command of `berth exec` succeeded, but its output was cut at 1 MiB'],
  [EXIT.interrupted, 'Ctrl-C: the server continues what it has begun'],
];

const BY_STATUS: Readonly<Record<number, number>> = {
  400: EXIT.usage,
  401: EXIT.not_authorised,
  403: EXIT.not_authorised,
  404: EXIT.not_found,
  409: EXIT.state,
  412: EXIT.state,
  421: EXIT.usage,
  422: EXIT.state,
  423: EXIT.not_authorised,
  429: EXIT.limit,
  503: EXIT.unavailable,
};

export function exitCodeOf(error: unknown): number {
  if (error instanceof CommandError) return error.exit_code;
  if (error instanceof BerthConnectionError) return EXIT.unavailable;
  if (error instanceof BerthError) return BY_STATUS[error.status] ?? EXIT.failed;
  if (error instanceof VmWaitError) return EXIT.failed;
  return EXIT.failed;
}
