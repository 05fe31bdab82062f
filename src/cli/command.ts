/**
 * Defines what a command is (`Command`): its name, arguments, options, help and `run`. `command-table.ts` lists all
 * commands. Parser, help, completion and docs/cli.md read these definitions.
 */
import type { ParseArgsOptionDescriptor } from 'node:util';
import type { Session } from './session.ts';
import { LIST_FORMATS } from './table.ts';
import type { Terminal } from './terminal.ts';

export interface Option extends Pick<ParseArgsOptionDescriptor, 'type' | 'short' | 'multiple'> {
  readonly help: string;
  /** The name of its value: `N`. Completion goes by this name (complete.ts). */
  readonly value?: string;
  /** The only values that are allowed. */
  readonly choices?: readonly string[];
  /** The field of the API's request that it sets: errors name the option instead. */
  readonly field?: string;
}

export interface Call {
  readonly args: readonly string[];
  /** The words for another program: a guest's command, or ssh's options. */
  readonly rest: readonly string[];
  readonly options: Options;
  readonly terminal: Terminal;
  readonly session: Session;
  /** Aborted by Ctrl-C. */
  readonly signal: AbortSignal;
}

export class Options {
  readonly #values: Readonly<Record<string, unknown>>;
  constructor(values: Readonly<Record<string, unknown>>) {
    this.#values = values;
  }
  flag(name: string): boolean {
    return this.#values[name] === true;
  }
  text(name: string): string | undefined {
    const value = this.#values[name];
    return typeof value === 'string' ? value : undefined;
  }
  list(name: string): readonly string[] | undefined {
    const value = this.#values[name];
    return Array.isArray(value) ? (value as string[]) : undefined;
  }
}

export interface Command {
  /** `instance create`. The help shows commands in the order of the table. */
  readonly name: string;
  /** Shorter names: `create`. */
  readonly short?: readonly string[];
  /** `NAME`, `[NAME]`, `NAME…`: shown in the help, used to count arguments, and to complete them (complete.ts). */
  readonly args?: readonly string[];
  /** The words of another program that follow the arguments, as the help shows them: `COMMAND…`. */
  readonly rest?: string;
  /** Options of one letter that this command does not have are another program's: those with a value, such as `Lp`. */
  readonly passes?: string;
  /** Fields of the API's request by the argument that sets them, where it is not called like the field: `email: 'ADDRESS'`. */
  readonly fields?: Readonly<Record<string, string>>;
  readonly summary: string;
  /** Further sentences, for its own help. */
  readonly details?: string;
  readonly example: string;
  readonly options?: Readonly<Record<string, Option>>;
  /** Asks for the password, with {@link PROOF}: not within five minutes of `berth sudo`, or always, where the call itself takes it. */
  readonly password?: 'unless_sudo' | 'always';
  /** Runs on the server, with its database. */
  readonly on_server?: boolean;
  /** Its NAME arguments are existing instances, for completion and suggestions. */
  readonly names_instances?: boolean;
  /** Prints a list, so it has --columns and --format. Commands called `… ls` do. */
  readonly lists?: boolean;
  /** @returns the exit code; undefined for success */
  readonly run: (call: Call) => Promise<number | undefined>;
}

/** How many arguments a command takes. */
export function arityOf({ args = [] }: Command): { readonly least: number; readonly most: number } {
  const least = args.filter((each) => !each.startsWith('[')).length;
  return { least, most: args.some((each) => each.includes('…')) ? Number.POSITIVE_INFINITY : args.length };
}

const HELP = { help: { type: 'boolean', short: 'h', help: 'show this help' } } as const;
const QUIET: Option = {
  type: 'boolean',
  short: 'q',
  help: 'only ids or names; nothing if there are none',
};

/** Options of every command that uses the API. */
export const COMMON_OPTIONS: Readonly<Record<string, Option>> = {
  json: { type: 'boolean', help: "the API's response, as JSON" },
  quiet: QUIET,
  profile: {
    type: 'string',
    value: 'PROFILE',
    help: 'the login to use (BERTH_PROFILE; default: the last one)',
  },
  url: { type: 'string', value: 'URL', help: 'the server (BERTH_URL)' },
  ...HELP,
};

/** Options of every command that asks for the password. */
export const PROOF: Readonly<Record<'totp' | 'password-stdin', Option>> = {
  totp: {
    type: 'string',
    value: 'CODE',
    field: 'totp_code',
    help: 'the code of your authenticator, or a recovery code, if the account has a second factor',
  },
  'password-stdin': { type: 'boolean', help: 'the password is the first line of stdin' },
};

/** Options of every command that prints a list. */
export const LIST_OPTIONS: Readonly<Record<string, Option>> = {
  columns: { type: 'string', value: 'A,B,…', help: 'only these columns, in this order' },
  format: {
    type: 'string',
    value: 'FORMAT',
    choices: LIST_FORMATS,
    help: 'table, csv or json; csv and json have more columns, exact numbers and RFC 3339 times; default: table',
  },
};

const isList = ({ name, lists }: Command) => lists ?? / ls$/.test(name);

/** The options that the command shares with others. */
function sharedOptions(command: Command): Readonly<Record<string, Option>> {
  const list = isList(command) ? LIST_OPTIONS : {};
  if (!command.on_server) return { ...list, ...COMMON_OPTIONS };
  return isList(command) ? { ...list, quiet: QUIET, ...HELP } : HELP;
}

/** The options that are the command's own. */
export function ownOptionsOf({ options = {}, password }: Command): Readonly<Record<string, Option>> {
  // The command may say its own of one of them.
  return password === undefined ? options : { ...options, ...PROOF, ...options };
}

export const optionsOf = (command: Command): Readonly<Record<string, Option>> => ({
  ...ownOptionsOf(command),
  ...sharedOptions(command),
});

/** The arguments of a command on an instance that exists, or on several. */
export const INSTANCE = { args: ['NAME'], names_instances: true } as const;
export const INSTANCES = { args: ['NAME…'], names_instances: true } as const;

export const NO_WAIT = {
  'no-wait': { type: 'boolean', help: 'return at once, without waiting for the end' },
} as const;
