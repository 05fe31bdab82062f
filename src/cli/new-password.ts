/** A password that is set: from stdin, or typed twice. */
import type { Call } from './command.ts';
import { CommandError } from './command-error.ts';

export async function newPassword({ terminal, options }: Pick<Call, 'terminal' | 'options'>, what: string) {
  if (options.flag('password-stdin')) return (await terminal.stdin()).split('\n')[0] ?? '';
  return typedTwice({ terminal }, what);
}

export async function typedTwice({ terminal }: Pick<Call, 'terminal'>, what: string): Promise<string> {
  const first = await terminal.askSecret(`${what}, 12 characters or more`);
  const second = await terminal.askSecret(`${what} again`);
  if (first !== second) throw new CommandError('the two are not the same; nothing was changed');
  return first;
}
