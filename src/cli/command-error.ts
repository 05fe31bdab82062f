/** A command's failure, for the person who typed it; `next` is a command or step that helps. */
export class CommandError extends Error {
  override name = 'CommandError';
  readonly next: string | null;
  readonly exit_code: number;

  constructor(
    message: string,
    { next = null, exit_code = 1 }: { next?: string | null; exit_code?: number } = {},
  ) {
    super(message);
    this.next = next;
    this.exit_code = exit_code;
  }
}

/** Unknown words or options. */
export class UsageError extends Error {
  override name = 'UsageError';
}
