/** Runs the command line: finds the command, parses its options, runs it, reports its error and exits with its code. */
import { readEnv } from '../config/env.ts';
import type { Command, Options } from './command.ts';
import { CommandError, EXIT, exitCodeOf, InstanceError, UsageError } from './command-error.ts';
import { findCommand } from './command-table.ts';
import { complete } from './complete.ts';
import { explain, suggestInstance, typedAgain } from './explain.ts';
import { asksAboutNoun, helpFor, helpOf, helpOfAll, helpOfSections, shortest, usageOf } from './help.ts';
import { leadingOptions, type Parsed, parse } from './parse.ts';
import { Session, version } from './session.ts';
import { type Layout, LIST_FORMATS } from './table.ts';
import { type Format, Terminal } from './terminal.ts';

/** Invalid settings of a server command: the launcher's error has its own exit code. */
interface Refusal extends Error {
  readonly exit_code: number;
}

/** How long a command may clean up after Ctrl-C. */
const INTERRUPT_MS = 1_000;
const SERVER_INTERRUPT_MS = 10_000;

/** @throws UsageError for options that exclude each other */
function terminalFor(options: Options): Terminal {
  const columns = options.text('columns')?.split(',');
  const format = LIST_FORMATS.find((each) => each === options.text('format'));
  // `disk export --format raw` is another option.
  const layout: Layout = { columns: columns ?? null, format: format ?? 'table' };
  const asked: Format[] = [];
  if (options.flag('json')) asked.push('json');
  if (options.flag('quiet')) asked.push('quiet');
  if (asked.length > 1) throw new UsageError('--json and --quiet exclude each other');
  const [first] = asked;
  if (first !== undefined && (columns !== undefined || format !== undefined)) {
    const hint = first === 'json' ? "; --json is the API's response, --format json has the columns" : '';
    throw new UsageError(`--${first} excludes --columns and --format${hint}`);
  }
  return new Terminal(first ?? (layout.format === 'table' ? 'human' : 'records'), layout);
}

function refuse(error: UsageError, command: Command): number {
  process.stderr.write(
    `usage: ${usageOf(command)}\nberth: ${error.message}\n  next: berth help ${shortest(command)}\n`,
  );
  return EXIT.usage;
}

async function run(command: Command, named: readonly string[], words: readonly string[]): Promise<number> {
  let parsed: Parsed;
  let terminal: Terminal;
  try {
    parsed = parse(command, words);
    terminal = terminalFor(parsed.options);
  } catch (error) {
    if (error instanceof UsageError) return refuse(error, command);
    throw error;
  }
  const { options, args, rest } = parsed;
  if (options.flag('help')) {
    process.stdout.write(helpOf(command));
    return EXIT.done;
  }
  const interrupted = new AbortController();
  process.once('SIGINT', () => {
    interrupted.abort(new CommandError('interrupted', { exit_code: EXIT.interrupted }));
    // A command that ignores the signal has nothing to clean up: end it.
    const patience_ms = command.on_server === true ? SERVER_INTERRUPT_MS : INTERRUPT_MS;
    setTimeout(() => process.exit(EXIT.interrupted), patience_ms).unref();
  });
  const place = { profile: options.text('profile'), url: options.text('url') };
  const session = new Session(readEnv(), place, terminal);
  try {
    return (
      (await command.run({ args, rest, options, terminal, session, signal: interrupted.signal })) ?? EXIT.done
    );
  } catch (thrown) {
    const [error, named_args] =
      thrown instanceof InstanceError ? [thrown.cause, [thrown.instance]] : [thrown, args];
    if (error instanceof UsageError) return refuse(error, command);
    const reason: unknown = interrupted.signal.reason;
    if (error === reason) return EXIT.interrupted;
    if ((error as Partial<Refusal>).name === 'StartError') {
      const { message, exit_code } = error as Refusal;
      for (const line of message.split('\n')) process.stderr.write(`berth: ${line}\n`);
      return exit_code;
    }
    const meant = await suggestInstance(error, command, session);
    const typed = command.rest === undefined ? [...named, ...words] : named;
    const again = typedAgain(typed, command.rest === undefined ? [] : words);
    terminal.warn(explain(error, command, { args: named_args, env: session.env, again }, meant));
    return exitCodeOf(error);
  }
}

function refuseExtra(word: string): number {
  process.stderr.write(`berth: unexpected argument “${word}”\n  next: berth help\n`);
  return EXIT.usage;
}

function help(asked: readonly string[], is_help: boolean): number {
  const found = findCommand(asked);
  const print = (text: string) => process.stdout.write(text);
  if (asked.length === 0 && is_help) print(helpOfAll());
  else if (is_help && asked.length === 1 && asked[0] === 'all') print(helpOfSections());
  else if (found !== undefined) {
    const extra = asked[found.taken];
    if (extra !== undefined) return refuseExtra(extra);
    print(helpOf(found.command));
  } else if (asksAboutNoun(asked, is_help)) print(helpFor(asked));
  else {
    process.stderr.write(asked.length === 0 ? helpOfAll() : helpFor(asked));
    return EXIT.usage;
  }
  return EXIT.done;
}

async function main(said: readonly string[]): Promise<number> {
  const [leading, words] = leadingOptions(said);
  const [first, second] = words;
  if (first === '__complete') {
    const session = new Session(readEnv(), {}, new Terminal('quiet'));
    const next = await complete(words.slice(1), () => session);
    process.stdout.write(next.map((each) => `${each}\n`).join(''));
    return EXIT.done;
  }
  if (first === 'version' || first === '--version') {
    if (second !== undefined) return refuseExtra(second);
    process.stdout.write(`berth ${version()}\n`);
    return EXIT.done;
  }
  if (first === 'help' || first === '--help' || first === '-h') return help(words.slice(1), true);
  const found = findCommand(words);
  if (found === undefined) return help(words, false);
  return run(found.command, words.slice(0, found.taken), [...leading, ...words.slice(found.taken)]);
}

// A reader that closes the pipe (`berth ls | head`) is no failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) =>
  process.exit(error.code === 'EPIPE' ? EXIT.done : EXIT.failed),
);
// Without a reader, the work and its exit code stay the same.
process.stderr.on('error', () => undefined);
process.exitCode = await main(process.argv.slice(2));
