/** A reason not to start that the operator can do something about: one clear line (a line a setting), and the exit code. */
export class StartError extends Error {
  override name = 'StartError';
  readonly exit_code: number;

  /** 2: the settings or the machine must be changed first. 1: trying again may help. */
  constructor(message: string, exit_code: 1 | 2 = 2, options?: ErrorOptions) {
    super(message, options);
    this.exit_code = exit_code;
  }
}

/** Tells a person what goes on; one line, without a line break. */
export type Say = (line: string) => void;

export const sayOnStdout: Say = (line) => {
  process.stdout.write(`berth: ${line}\n`);
};

/** Puts it on stderr, a line a problem, and returns the exit code. */
export function refuse(error: StartError): number {
  for (const line of error.message.split('\n')) process.stderr.write(`berth: ${line}\n`);
  return error.exit_code;
}
