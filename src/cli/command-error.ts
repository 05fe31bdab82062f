/** Failures that a command reports in one line, with the exit code of each. */
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
