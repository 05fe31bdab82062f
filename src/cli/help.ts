/**
 * Renders the help: the overview, the list of all commands, the page of one command, and the generated part of
 * docs/cli.md.
 */
import { nearest } from '../shared/nearest.ts';
import {
  COMMON_OPTIONS,
  type Command,
  LIST_OPTIONS,
  type Option,
  optionsOf,
  ownOptionsOf,
} from './command.ts';
import { EXIT_MEANINGS } from './command-error.ts';
import { COMMANDS, OTHER_WORDS, SECTIONS, synonymsOf } from './command-table.ts';
import { wrapped } from './table.ts';

/** Aligns all sections of the help. */
const HELP_WIDTH = 26;
const SCREEN_WIDTH = 80;
const NAMES = COMMANDS.flatMap(({ name, short = [] }) => [...short, name]);
/** With the synonyms: `list`. */
const WORDS = [...NAMES, ...COMMANDS.flatMap(synonymsOf)];
/** Keeps a noun and its verbs on one line. */
const NO_BREAK = '\u00a0';
/** The commands that the overview explains. */
const MOST_USED = ['up', 'ls', 'create', 'start', 'ssh', 'exec', 'stop', 'show', 'fork', 'rm'];
export const shortest = ({ name, short = [] }: Command) => short[0] ?? name;

export function usageOf(command: Command): string {
  const words = ['berth', shortest(command)];
  const args = command.args ?? [];
  if (command.rest !== undefined) return [...words, '[OPTIONS]', ...args, command.rest].join(' ');
  words.push(...args);
  if (Object.keys(ownOptionsOf(command)).length > 0) words.push('[OPTIONS]');
  return words.join(' ');
}

function optionWords(name: string, { short, value }: Option): string {
  return `${short === undefined ? '' : `-${short}, `}--${name}${value === undefined ? '' : ` ${value}`}`;
}

function columns(rows: readonly (readonly [string, string])[], least = 0): string {
  const width = Math.max(least, ...rows.map(([left]) => left.length));
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}\n`).join('');
}

const sentence = (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

/** The other names of a command: its name in full, and words from other tools. */
function otherNames(command: Command): string {
  const full = command.short ? [`In full: berth ${command.name}`] : [];
  const synonyms = synonymsOf(command).map((word) => `berth ${word}`);
  return [...full, ...(synonyms.length === 0 ? [] : [`Also: ${synonyms.join(', ')}`])].join('\n');
}

/** Options under a title; nothing without any. */
function optionGroup(title: string, options: Readonly<Record<string, Option>>, width: number): string {
  const rows = Object.entries(options).map(([name, each]) => [optionWords(name, each), each.help] as const);
  return rows.length === 0 ? '' : `\n${title}:\n${columns(rows, width)}`;
}

function optionGroups(command: Command): string {
  const all = optionsOf(command);
  const own = Object.keys(ownOptionsOf(command));
  const groupOf = (name: string) =>
    own.includes(name) ? 'options' : name in LIST_OPTIONS ? 'list' : 'shared';
  const those = (group: string) =>
    Object.fromEntries(Object.entries(all).filter(([name]) => groupOf(name) === group));
  const width = Math.max(0, ...Object.entries(all).map(([name, each]) => optionWords(name, each).length));
  return (
    optionGroup('options', those('options'), width) +
    optionGroup('options of every list', those('list'), width) +
    optionGroup('options of every command', those('shared'), width)
  );
}

const PASSWORD: Readonly<Record<NonNullable<Command['password']>, string>> = {
  unless_sudo: 'Asks for your password, unless `berth sudo` has done so.',
  always: 'Asks for your password, also after `berth sudo`.',
};

function detailsOf({ details, password }: Command): readonly string[] {
  return [
    ...(details === undefined ? [] : [details]),
    ...(password === undefined ? [] : [PASSWORD[password]]),
  ];
}

export function helpOf(command: Command): string {
  const names = otherNames(command);
  const details = wrapped(detailsOf(command).join(' ').replaceAll('`', ''), SCREEN_WIDTH);
  return [
    `${sentence(command.summary)}\n`,
    `usage: ${usageOf(command)}\n${names === '' ? '' : `\n${names}\n`}`,
    ...(details[0] === '' ? [] : [`${details.join('\n')}\n`]),
    `${optionGroups(command).slice(1)}`,
    `for example:\n  ${command.example}\n`,
  ].join('\n');
}

/** A command that needs another program's words shows them; a command that may have some does not. */
function rowOf(command: Command) {
  const rest = command.rest?.startsWith('[') === false ? [command.rest] : [];
  return [[shortest(command), ...(command.args ?? []), ...rest].join(' '), command.summary] as const;
}

/** One screen: the most used commands, then the names of all by section. */
export function helpOfAll(): string {
  const most_used = MOST_USED.flatMap((name) => COMMANDS.filter((each) => shortest(each) === name));
  const width = Math.max(...SECTIONS.map(({ title }) => title.length)) + 2;
  const sections = SECTIONS.map(({ title, commands }) => {
    const lines = wrapped(namesIn(commands), SCREEN_WIDTH - width - 2);
    const text = lines.map((line, at) => `  ${(at === 0 ? title : '').padEnd(width)}${line}\n`);
    return text.join('').replaceAll('| ', '|').replaceAll(NO_BREAK, ' ');
  });
  return [
    'usage: berth COMMAND [NAME] [OPTIONS]\n',
    `Most used\n${columns(most_used.map(rowOf))}`,
    `All commands\n${sections.join('')}`,
    'berth help COMMAND shows a command with its options; berth help all, one line for each.\n',
  ].join('\n');
}

/** The verbs of a noun that has many stand on several lines. */
const MOST_VERBS = 4;

function linesOf(verbs: readonly string[]): string {
  const joined = verbs.map((verb) => verb.replaceAll(' ', NO_BREAK));
  const rows = Array.from({ length: Math.ceil(verbs.length / MOST_VERBS) }, (_, at) =>
    joined.slice(at * MOST_VERBS, (at + 1) * MOST_VERBS).join('|'),
  );
  return rows.join('| ');
}

/** `ls create webhook create|ls`: the verbs of a noun are listed together. */
function namesIn(commands: readonly Command[]): string {
  const groups = new Map<string, string[]>();
  for (const command of commands) {
    const [first = '', ...verb] = shortest(command).split(' ');
    const verbs = groups.get(first) ?? [];
    groups.set(first, verb.length === 0 ? verbs : [...verbs, verb.join(' ')]);
  }
  const named = ([noun, verbs]: readonly [string, readonly string[]]) =>
    verbs.length === 0 ? noun : `${noun}${NO_BREAK}${linesOf(verbs)}`;
  return [...groups].map(named).join(', ');
}

/** Every command with its summary. */
export function helpOfSections(): string {
  const sections = SECTIONS.map(
    ({ title, commands }) => `${title}\n${columns(commands.map(rowOf), HELP_WIDTH)}`,
  );
  return [
    'usage: berth COMMAND [NAME] [OPTIONS]\n',
    ...sections,
    'berth help COMMAND shows a command with its options. Names stand for ids everywhere.\n',
  ].join('\n');
}

const HELP_WORDS: readonly string[] = ['-h', '--help'];
const isNoun = (noun: string) => NAMES.some((name) => name.startsWith(`${noun} `));

/** Whether the arguments are only a noun, which shows the noun's help and is no failure. */
export function asksAboutNoun([noun = '', verb, ...rest]: readonly string[], asks: boolean): boolean {
  const only = asks ? verb === undefined : HELP_WORDS.includes(verb ?? '');
  return only && rest.length === 0 && isNoun(noun);
}

/** Nouns differ in their verb for a new thing. */
const CREATING: readonly string[] = ['create', 'add', 'set', 'new'];

/** The command of this noun that was probably meant. Another noun's would do something else. */
function commandOfNoun(noun: string, verb = ''): string | undefined {
  const names = NAMES.filter((name) => name.startsWith(`${noun} `));
  const creating = CREATING.map((each) => `${noun} ${each}`).find((name) => names.includes(name));
  if (CREATING.includes(verb) && creating !== undefined) return creating;
  // `rm` is no mistyped `ls`, also where a noun has no `rm`.
  const is_verb = NAMES.some((name) => name.endsWith(` ${verb}`));
  return is_verb ? undefined : nearest(`${noun} ${verb}`, names);
}

/** The help for an unknown command: the commands of its noun, and the nearest command. */
export function helpFor([noun = '', verb]: readonly string[]): string {
  const alike = COMMANDS.filter(({ name }) => name.startsWith(`${noun} `));
  const asks = verb === undefined || HELP_WORDS.includes(verb);
  const said = asks ? noun : `${noun} ${verb}`;
  const rows = alike.map(
    (each) => [`berth ${[each.name, ...(each.args ?? [])].join(' ')}`, each.summary] as const,
  );
  if (asks && alike.length > 0) return `usage:\n${columns(rows)}`;
  const meant = isNoun(noun)
    ? commandOfNoun(noun, verb)
    : (OTHER_WORDS.get(noun) ?? nearest(said, [...NAMES, ...WORDS]) ?? nearest(noun, WORDS));
  const hint = meant === undefined ? '' : `. Did you mean berth ${meant}?`;
  const usage = alike.length === 0 ? 'usage: berth COMMAND [NAME] [OPTIONS]\n' : `usage:\n${columns(rows)}`;
  const next = alike.length === 0 ? 'berth help' : `berth help ${noun}`;
  return `${usage}berth: there is no command “${said}”${hint}\n  next: ${next}\n`;
}

/** A command in docs/cli.md. */
function referenceOf(command: Command): string {
  const options = Object.entries(ownOptionsOf(command)).map(
    ([name, each]) => `- \`${optionWords(name, each)}\`: ${each.help}\n`,
  );
  const long = command.short ? ` In full \`berth ${command.name}\`.` : '';
  const synonyms = synonymsOf(command).map((word) => `\`berth ${word}\``);
  const also = synonyms.length === 0 ? '' : ` Also ${synonyms.join(', ')}.`;
  const details = detailsOf(command)
    .map((each) => ` ${each}`)
    .join('');
  const list = options.length === 0 ? '' : `\n${options.join('')}`;
  const text = `${sentence(command.summary)}${details}${long}${also}`;
  return `### \`${usageOf(command)}\`\n\n${text} Example: \`${command.example}\`\n${list}`;
}

/** The generated part of docs/cli.md. */
export function reference(): string {
  const sections = SECTIONS.map(
    ({ title, commands }) => `## ${title}\n\n${commands.map(referenceOf).join('\n')}`,
  );
  const rows = (options: Readonly<Record<string, Option>>) =>
    Object.entries(options)
      .map(([name, each]) => `| \`${optionWords(name, each)}\` | ${each.help} |\n`)
      .join('');
  const exits = EXIT_MEANINGS.map(([code, meaning]) => `| ${code} | ${meaning} |\n`);
  return [
    `## Everywhere\n\n| option | |\n|---|---|\n${rows(COMMON_OPTIONS)}`,
    `Commands that print a list also have:\n\n| option | |\n|---|---|\n${rows(LIST_OPTIONS)}`,
    `## Exit codes\n\n| code | when |\n|---|---|\n${exits.join('')}\n\`berth ssh\` ends with what \`ssh\` ends with: the command's own code, or 255. \`berth exec\` ends with the command's own code; where the API refuses, with one of these.\n`,
    ...sections,
  ].join('\n');
}
