/**
 * Parses the words after a command's name. A command that runs another program (`exec`, `ssh`) takes its own options until
 * that program's words begin: at `--`, or at the first word after its arguments.
 */
import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';
import { nearest } from '../shared/nearest.ts';
import { arityOf, COMMON_OPTIONS, type Command, type Option, Options, optionsOf } from './command.ts';
import { UsageError } from './command-error.ts';

export interface Parsed {
  readonly options: Options;
  readonly args: readonly string[];
  readonly rest: readonly string[];
}

/** @throws UsageError */
export function parse(command: Command, words: readonly string[]): Parsed {
  const known = optionsOf(command);
  const { own, rest } = command.rest === undefined ? { own: words, rest: [] } : split(command, words, known);
  const { values, positionals: args } = parsed(own, known);
  const options = new Options(values);
  for (const [name, { choices }] of Object.entries(known)) {
    const said = options.list(name) ?? [options.text(name)].filter((each) => each !== undefined);
    for (const value of choices === undefined ? [] : said) requireChoice(name, value, choices ?? []);
  }
  const { least, most } = arityOf(command);
  if (options.flag('help')) return { options, args, rest };
  if (args.length < least)
    throw new UsageError(`${command.args?.[args.length]?.replace('…', '')} is missing`);
  if (args.length > most) throw new UsageError(`unexpected argument “${args[most]}”`);
  return { options, args, rest };
}

/** Longer lists are named only where no choice is near. */
const MOST_LISTED = 8;

function requireChoice(name: string, value: string, choices: readonly string[]): void {
  if (choices.includes(value)) return;
  const meant = nearest(value, choices);
  const hint = meant === undefined ? '' : `. Did you mean ${meant}?`;
  if (meant !== undefined && choices.length > MOST_LISTED)
    throw new UsageError(`--${name} cannot be ${value}${hint}`);
  const all = `${choices.slice(0, -1).join(', ')} or ${choices.at(-1)}`;
  throw new UsageError(`--${name} takes ${all}, not ${value}${hint}`);
}

interface ParseFailure extends Error {
  readonly code?: string;
}

function parsed(words: readonly string[], known: Readonly<Record<string, Option>>) {
  const options = Object.fromEntries(
    Object.entries(known).map(([name, { type, short, multiple }]) => [
      name,
      { type, ...(short === undefined ? {} : { short }), ...(multiple === undefined ? {} : { multiple }) },
    ]),
  ) as ParseArgsOptionsConfig;
  try {
    return parseArgs({ args: [...words], options, allowPositionals: true, strict: true });
  } catch (error) {
    throw refusal(error as ParseFailure, known);
  }
}

/** Node's messages, in the words of the help. */
function refusal(error: ParseFailure, known: Readonly<Record<string, Option>>): UsageError {
  const [, said = ''] = /'(?:-\w, )?(-{1,2}[^'=\s]+)/.exec(error.message) ?? [];
  const option = known[said.replace(/^--/, '')];
  if (error.code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION') {
    const meant = nearest(said.replace(/^-+/, ''), Object.keys(known));
    return new UsageError(
      `there is no option ${said}${meant === undefined ? '' : `. Did you mean --${meant}?`}`,
    );
  }
  if (error.code !== 'ERR_PARSE_ARGS_INVALID_OPTION_VALUE' || option === undefined)
    return new UsageError(error.message.split('. ')[0]);
  return new UsageError(
    option.type === 'string'
      ? `${said} takes a value: ${said} ${option.value ?? 'VALUE'}`
      : `${said} takes no value`,
  );
}

/** @returns the command's own words, and the other program's */
function split(command: Command, words: readonly string[], known: Readonly<Record<string, Option>>) {
  const own: string[] = [];
  const passed: string[] = [];
  let args_left = command.args?.length ?? 0;
  for (let at = 0; at < words.length; at++) {
    const word = words[at] ?? '';
    if (word === '--') return { own, rest: [...passed, ...words.slice(at + 1)] };
    const is_option = word.startsWith('-') && word !== '-';
    if (!is_option && args_left === 0) return { own, rest: [...passed, ...words.slice(at)] };
    if (!is_option) args_left -= 1;
    const theirs = is_option && isPassed(command, word);
    const target = theirs ? passed : own;
    target.push(word);
    const takes_next = theirs ? lacksValue(word, command.passes ?? '') : is_option && needsValue(word, known);
    if (takes_next) {
      at += 1;
      target.push(...words.slice(at, at + 1));
    }
  }
  return { own, rest: passed };
}

/** An option of one letter that is not the command's own. `-q` is passed too: --quiet is the command's. */
function isPassed({ passes, options = {} }: Command, word: string): boolean {
  if (passes === undefined || !/^-[^-]/.test(word) || word === '-h') return false;
  return Object.values(options).every(({ short }) => short !== word[1]);
}

/** Whether the last letter of `-vL` takes a value that is not attached. */
function lacksValue(word: string, with_value: string): boolean {
  const first = [...word].findIndex((letter, at) => at > 0 && with_value.includes(letter));
  return first !== -1 && first === word.length - 1;
}

function needsValue(word: string, known: Readonly<Record<string, Option>>): boolean {
  if (word.includes('=')) return false;
  const option = word.startsWith('--')
    ? known[word.slice(2)]
    : Object.values(known).find(({ short }) => word.length === 2 && short === word[1]);
  return option?.type === 'string';
}

/** Options of all commands may precede the command: `berth --json ls`. @returns them, and the words from the command on */
export function leadingOptions(words: readonly string[]): readonly [readonly string[], readonly string[]] {
  let taken = 0;
  while (taken < words.length) {
    const [name = ''] = (words[taken] ?? '').replace(/^--/, '').split('=', 1);
    const option = words[taken] === '-q' ? COMMON_OPTIONS['quiet'] : COMMON_OPTIONS[name];
    if (option === undefined || name === 'help' || !words[taken]?.startsWith('-')) break;
    taken += option.type === 'string' && !words[taken]?.includes('=') ? 2 : 1;
  }
  // `-q` after `ssh` is ssh's.
  const leading = words.slice(0, taken).map((word) => (word === '-q' ? '--quiet' : word));
  return [leading, words.slice(taken)];
}
