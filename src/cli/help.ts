/** The help: of all commands, of one command, and the generated part of docs/cli.md. */
import { nearest } from '../lib/nearest.ts';
import { COMMON_OPTIONS, type Command, type Option } from './command.ts';
import { COMMANDS, SECTIONS } from './command-table.ts';
import { EXIT_MEANINGS } from './exit-codes.ts';

/** Aligns all sections of the help. */
const HELP_WIDTH = 26;
const NAMES = COMMANDS.flatMap(({ name, short = [] }) => [...short, name]);
export const shortest = ({ name, short = [] }: Command) => short[0] ?? name;

export function usageOf(command: Command): string {
  const words = ['berth', shortest(command), ...(command.args ?? [])];
  if (command.options !== undefined && Object.keys(command.options).length > 0) words.push('[OPTIONS]');
  if (command.rest !== undefined) words.push(`[-- ${command.rest}]`);
  return words.join(' ');
}

function optionWords(name: string, { short, value }: Option): string {
  return `${short === undefined ? '' : `-${short}, `}--${name}${value === undefined ? '' : ` ${value}`}`;
}

function columns(rows: readonly (readonly [string, string])[], least = 0): string {
  const width = Math.max(least, ...rows.map(([left]) => left.length));
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}\n`).join('');
}

export function helpOf(command: Command): string {
  const options = Object.entries({ ...command.options, ...(command.on_server ? {} : COMMON_OPTIONS) });
  const long = command.short ? `\nIn full: berth ${command.name}\n` : '';
  return [
    `${command.summary.charAt(0).toUpperCase()}${command.summary.slice(1)}.\n`,
    `usage: ${usageOf(command)}\n${long}`,
    ...(options.length === 0
      ? []
      : [`options:\n${columns(options.map(([name, each]) => [optionWords(name, each), each.help]))}`]),
    `for example:\n  ${command.example}\n`,
  ].join('\n');
}

export function helpOfAll(): string {
  const sections = SECTIONS.map(({ title, commands }) => {
    const rows = commands.map((each) => {
      const args = (each.args ?? []).join(' ');
      return [`${shortest(each)} ${args}`.trim(), each.summary] as const;
    });
    return `${title}\n${columns(rows, HELP_WIDTH)}`;
  });
  return [
    'usage: berth COMMAND [NAME] [OPTIONS]\n',
    ...sections,
    'berth help COMMAND shows one with its options. --json and -q are for programs. Names stand for ids everywhere.\n',
  ].join('\n');
}

const HELP_WORDS: readonly string[] = ['-h', '--help'];
const isNoun = (noun: string) => NAMES.some((name) => name.startsWith(`${noun} `));

/** Whether the arguments are only a noun, which shows the noun's help and is no failure. */
export function asksAboutNoun([noun = '', verb, ...rest]: readonly string[], asks: boolean): boolean {
  const only = asks ? verb === undefined : HELP_WORDS.includes(verb ?? '');
  return only && rest.length === 0 && isNoun(noun);
}

/** The help for an unknown command: the commands of its noun, or the nearest command. */
export function helpFor([noun = '', verb]: readonly string[]): string {
  const alike = SECTIONS.flatMap(({ commands }) => commands).filter(({ name }) =>
    name.startsWith(`${noun} `),
  );
  const asks = verb === undefined || HELP_WORDS.includes(verb);
  const said = asks ? noun : `${noun} ${verb}`;
  if (alike.length === 0) {
    const meant = nearest(said, NAMES) ?? nearest(noun, NAMES);
    const next =
      meant === undefined ? 'berth help' : `berth ${meant}, if that was meant; berth help lists all`;
    return `usage: berth COMMAND [NAME] [OPTIONS]\nberth: there is no command “${said}”\n  next: ${next}\n`;
  }
  const rows = alike.map(
    (each) => [`berth ${[each.name, ...(each.args ?? [])].join(' ')}`, each.summary] as const,
  );
  return `usage:\n${columns(rows)}${asks ? '' : `berth: there is no command “${said}”\n`}`;
}

/** The generated part of docs/cli.md. */
export function reference(): string {
  const sections = SECTIONS.map(({ title, commands }) => {
    const entries = commands.map((command) => {
      const options = Object.entries(command.options ?? {}).map(
        ([name, each]) => `- \`${optionWords(name, each)}\`: ${each.help}\n`,
      );
      const long = command.short ? ` In full \`berth ${command.name}\`.` : '';
      const text = `${command.summary.charAt(0).toUpperCase()}${command.summary.slice(1)}.${long}`;
      const list = options.length === 0 ? '' : `\n${options.join('')}`;
      return `### \`${usageOf(command)}\`\n\n${text} Example: \`${command.example}\`\n${list}`;
    });
    return `## ${title}\n\n${entries.join('\n')}`;
  });
  const common = Object.entries(COMMON_OPTIONS).map(
    ([name, each]) => `| \`${optionWords(name, each)}\` | ${each.help} |\n`,
  );
  const exits = EXIT_MEANINGS.map(([code, meaning]) => `| ${code} | ${meaning} |\n`);
  return [
    `## Everywhere\n\n| option | |\n|---|---|\n${common.join('')}`,
    `## Exit codes\n\n| code | when |\n|---|---|\n${exits.join('')}\n\`berth ssh\` ends with what \`ssh\` ends with: the command's own code, or 255. \`berth exec\` ends with the command's own code; where the API refuses, with one of these.\n`,
    ...sections,
  ].join('\n');
}
