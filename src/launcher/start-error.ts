/** A problem that the operator can fix: one line of text for each setting, and the exit code. */
export class StartError extends Error {
  override name = 'StartError';
  readonly exit_code: number;

  /** 2: change the settings or the machine first. 1: another try may succeed. */
  constructor(message: string, exit_code: 1 | 2 = 2, options?: ErrorOptions) {
    super(message, options);
    this.exit_code = exit_code;
  }
}

/** Prints one line for a person. */
export type Say = (line: string) => void;

export const sayOnStdout: Say = (line) => {
  process.stdout.write(`berth: ${line}\n`);
};

/** Prints the problems to stderr, and returns the exit code. */
export function refuse(error: StartError): number {
  for (const line of error.message.split('\n')) process.stderr.write(`berth: ${line}\n`);
  return error.exit_code;
}
