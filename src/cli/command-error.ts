/** What went wrong with a command, for the person who typed it; `next` is what they may type now. */
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

/** Wrong words or options. */
export class UsageError extends Error {
  override name = 'UsageError';
}
