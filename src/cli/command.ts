/** The type of a command. `command-table.ts` lists all commands; help, completion and docs/cli.md are generated from it. */
import type { ParseArgsOptionDescriptor } from 'node:util';
import type { Session } from './session.ts';
import type { Terminal } from './terminal.ts';

export interface Option extends Pick<ParseArgsOptionDescriptor, 'type' | 'short' | 'multiple'> {
  readonly help: string;
  /** The name of its value in the help: `N`. */
  readonly value?: string;
}

export interface Call {
  readonly args: readonly string[];
  /** The words after `--`. */
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
  /** `NAME`, `[NAME]`, `NAME…`: shown in the help, and used to count arguments. */
  readonly args?: readonly string[];
  /** Takes words after `--`. */
  readonly rest?: string;
  readonly summary: string;
  readonly example: string;
  readonly options?: Readonly<Record<string, Option>>;
  /** Runs on the server, with its database. */
  readonly on_server?: boolean;
  /** Its arguments are instances, for completion. */
  readonly names_instances?: boolean;
  /** @returns the exit code; undefined for success */
  readonly run: (call: Call) => Promise<number | undefined>;
}

/** How many arguments a command takes. */
export function arityOf({ args = [] }: Command): { readonly least: number; readonly most: number } {
  const least = args.filter((each) => !each.startsWith('[')).length;
  return { least, most: args.some((each) => each.includes('…')) ? Number.POSITIVE_INFINITY : args.length };
}

export const COMMON_OPTIONS: Readonly<Record<string, Option>> = {
  json: { type: 'boolean', help: "the API's response, as JSON" },
  quiet: { type: 'boolean', short: 'q', help: 'only ids or names; nothing if there are none' },
  profile: { type: 'string', value: 'NAME', help: 'the login to use (BERTH_PROFILE; default: the last one)' },
  url: { type: 'string', value: 'URL', help: 'the server (BERTH_URL)' },
  help: { type: 'boolean', short: 'h', help: 'show this help' },
};

export const NO_WAIT = {
  'no-wait': { type: 'boolean', help: 'return once it has begun, without waiting for the end' },
} as const;
