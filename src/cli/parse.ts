/**
 * Parses the words after a command's name into options and arguments. `exec` and `ssh` pass words on to another
 * program: these begin at `--`, or at the first word after the command's own arguments.
 */
import { parseArgs } from 'node:util';
import { arityOf, COMMON_OPTIONS, type Command, type Option, Options, optionsOf } from './command.ts';
import { UsageError } from './command-error.ts';
import { choiceOf, didYouMean } from './values.ts';

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
    if (choices !== undefined) for (const value of said) choiceOf(`--${name}`, value, choices);
  }
  const { least, most } = arityOf(command);
  if (options.flag('help')) return { options, args, rest };
  if (args.length < least)
    throw new UsageError(`${command.args?.[args.length]?.replace('…', '')} is missing`);
  if (args.length > most) throw new UsageError(`unexpected argument “${args[most]}”`);
  return { options, args, rest };
}

interface ParseFailure extends Error {
  readonly code?: string;
}

function parsed(words: readonly string[], known: Readonly<Record<string, Option>>) {
  try {
    // Node looks at the fields of an option that it knows, and at no other.
    return parseArgs({ args: [...words], options: known, allowPositionals: true, strict: true });
  } catch (error) {
    throw refusal(error as ParseFailure, known);
  }
}

/** Node's messages, in the words of the help. */
function refusal(error: ParseFailure, known: Readonly<Record<string, Option>>): UsageError {
  const [, said = ''] = /'(?:-\w, )?(-{1,2}[^'=\s]+)/.exec(error.message) ?? [];
  const option = known[said.replace(/^--/, '')];
  if (error.code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION') {
    const hint = didYouMean(said.replace(/^-+/, ''), Object.keys(known), '--');
    return new UsageError(`there is no option ${said}${hint}`);
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
  return optionIn(word, known)?.type === 'string';
}

/** The option that `--state` or `-l` is. */
export function optionIn(word: string, known: Readonly<Record<string, Option>>): Option | undefined {
  if (word.startsWith('--')) return known[word.slice(2)];
  return Object.values(known).find(({ short }) => word.length === 2 && short === word[1]);
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
