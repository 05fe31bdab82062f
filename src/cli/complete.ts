/** Completes the last word. Never fails, and waits for the server only briefly. */
import type { Berth } from '../../client/src/berth.ts';
import { COMMON_OPTIONS } from './command.ts';
import { COMMANDS, findCommand } from './command-table.ts';
import { isInstanceName } from './numbers.ts';
import { collect } from './reading.ts';

const ASK_MS = 1_000;

export async function complete(words: readonly string[], login: () => Berth): Promise<readonly string[]> {
  const before = words.slice(0, -1);
  const typed = words.at(-1) ?? '';
  const found = findCommand(before);
  if (found === undefined) {
    const names = COMMANDS.flatMap(({ name, short = [] }) => [name, ...short]).map((name) => name.split(' '));
    const next = names.flatMap((name) =>
      before.every((word, at) => name[at] === word) ? (name[before.length] ?? []) : [],
    );
    return [...new Set(next), ...(before.length === 0 ? ['help', 'version'] : [])].filter((each) =>
      each.startsWith(typed),
    );
  }
  const { command } = found;
  if (typed.startsWith('-')) {
    const options = Object.keys({ ...command.options, ...(command.on_server ? {} : COMMON_OPTIONS) });
    return options.map((name) => `--${name}`).filter((each) => each.startsWith(typed));
  }
  if (command.name === 'completion') return ['bash', 'zsh', 'fish'].filter((each) => each.startsWith(typed));
  if (command.names_instances !== true) return [];
  try {
    const signal = AbortSignal.timeout(ASK_MS);
    const instances = await collect(login().instances.list({ limit: 200 }, { signal }), 200);
    // Bash expands completions like typed words, so a name from the server must not contain shell syntax.
    return instances.map(({ name }) => name).filter((name) => isInstanceName(name) && name.startsWith(typed));
  } catch {
    return [];
  }
}
