/** Completes the last word. Never fails, and waits for the server only briefly. */
import { arityOf, type Command, type Option, optionsOf } from './command.ts';
import { COMMANDS, findCommand } from './command-table.ts';
import { columnsFor } from './complete-columns.ts';
import { type Asked, valuesFor } from './complete-values.ts';
import { leadingOptions } from './parse.ts';
import type { Session } from './session.ts';

export async function complete(words: readonly string[], session: () => Session): Promise<readonly string[]> {
  const { typed, before_typed, prefix } = unquoted(words);
  const [, all] = leadingOptions(before_typed);
  const before = all[0] === 'help' ? all.slice(1) : all;
  const found = findCommand(before);
  // `audit` is a command, and begins `audit verify`.
  const words_of_names = found === undefined || found.taken === before.length ? nextWords(all, before) : [];
  const values =
    found === undefined ? [] : await nextValues(found.command, before.slice(found.taken), typed, session);
  return [...new Set([...words_of_names, ...values])]
    .filter((each) => isAnswer(each, typed))
    .map((each) => (each.startsWith(':') ? each : prefix + each));
}

/** The words as the shell would pass them; of `--state=run` the value is what is typed. */
function unquoted(words: readonly string[]) {
  const before_typed = words.slice(0, -1);
  const typed = (words.at(-1) ?? '').replace(/^["']/, '').replaceAll(/\\(.)/g, '$1');
  const [, option, value = ''] = /^(--[a-z-]+)=(.*)$/s.exec(typed) ?? [];
  if (option === undefined) return { typed, before_typed, prefix: '' };
  return { typed: value, before_typed: [...before_typed, option], prefix: `${option}=` };
}

/** `:files` is for the shell, which completes paths itself. */
const isAnswer = (value: string, typed: string) => value.startsWith(':') || value.startsWith(typed);

/** The next word of the names of commands. */
function nextWords(all: readonly string[], before: readonly string[]): readonly string[] {
  const names = COMMANDS.flatMap(({ name, short = [] }) => [name, ...short]).map((name) => name.split(' '));
  const next = names.flatMap((name) =>
    before.every((word, at) => name[at] === word) ? (name[before.length] ?? []) : [],
  );
  return [...new Set(next), ...(all.length === 0 ? ['help', 'version'] : [])];
}

async function nextValues(
  command: Command,
  before: readonly string[],
  typed: string,
  session: () => Session,
): Promise<readonly string[]> {
  const known = optionsOf(command);
  const { args, option, is_over } = placeOf(command, before, known);
  if (is_over) return [];
  const asked: Asked = { command, args, session };
  if (option !== undefined && option === known['columns']) return columnsFor(asked, before, typed);
  if (option !== undefined) return option.choices ?? valuesFor(option.value ?? '', asked);
  if (typed.startsWith('-')) return Object.keys(known).map((name) => `--${name}`);
  const { most } = arityOf(command);
  if (args.length >= most) return [];
  const last = (command.args?.length ?? 0) - 1;
  const placeholder = command.args?.[Math.min(args.length, last)] ?? '';
  const values = await valuesFor(placeholder.replace(/[[\]…]/g, ''), asked);
  // An argument that repeats names each only once.
  return placeholder.includes('…') ? values.filter((each) => !args.includes(each)) : values;
}

interface PlaceInWords {
  readonly args: readonly string[];
  /** The option whose value comes next. */
  readonly option: Option | undefined;
  /** The words of another program have begun. */
  readonly is_over: boolean;
}

function placeOf(
  command: Command,
  before: readonly string[],
  known: Readonly<Record<string, Option>>,
): PlaceInWords {
  const args: string[] = [];
  let option: Option | undefined;
  for (const word of before) {
    if (option !== undefined) {
      option = undefined;
      continue;
    }
    if (word === '--') return { args, option, is_over: command.rest !== undefined };
    if (word.startsWith('-') && word !== '-') {
      const found = word.startsWith('--')
        ? known[word.slice(2)]
        : Object.values(known).find(({ short }) => word.length === 2 && short === word[1]);
      if (found?.type === 'string') option = found;
    } else args.push(word);
  }
  return { args, option, is_over: command.rest !== undefined && args.length > (command.args?.length ?? 0) };
}
