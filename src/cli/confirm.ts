/** Asks before a command does something that its name does not say. */
import type { Call } from './command.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';

export interface Question {
  /** `Delete web with its disk?` */
  readonly ask: string;
  /** Without a terminal: what stands in the way. The error adds the command with `--yes`. */
  readonly refusal: string;
  /** After a no. */
  readonly undone: string;
}

/** Returns at once with `--yes`. @throws CommandError after a no, or without a terminal */
export async function confirm({ options, terminal }: Call, question: Question): Promise<void> {
  if (options.flag('yes')) return;
  if (!terminal.interactive) {
    throw new CommandError(question.refusal, { again: '--yes', exit_code: EXIT.usage });
  }
  const answer = await terminal.ask(`${question.ask} (yes/no)`, 'no');
  if (!/^y(es)?$/i.test(answer)) throw new CommandError(question.undone);
}

export const YES = { yes: { type: 'boolean', short: 'y', help: 'do not ask' } } as const;
