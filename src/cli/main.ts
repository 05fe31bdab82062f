/** The command line: finds the command, parses its options, runs it, and exits with its code. */
import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';
import { readEnv } from '../config/env.ts';
import { arityOf, COMMON_OPTIONS, type Command, type Option, Options } from './command.ts';
import { CommandError, UsageError } from './command-error.ts';
import { findCommand } from './command-table.ts';
import { complete } from './complete.ts';
import { EXIT, exitCodeOf } from './exit-codes.ts';
import { explain } from './explain.ts';
import { asksAboutNoun, helpFor, helpOf, helpOfAll, shortest, usageOf } from './help.ts';
import { Session } from './session.ts';
import { Terminal } from './terminal.ts';
import { version } from './version.ts';

/** Invalid settings of a server command: the launcher's error has its own exit code. */
interface Refusal extends Error {
  readonly exit_code: number;
}

const optionsOf = (command: Command): Record<string, Option> => ({
  ...command.options,
  ...(command.on_server ? { help: { type: 'boolean', short: 'h', help: 'show this help' } } : COMMON_OPTIONS),
});

/** How long a command may clean up after Ctrl-C. */
const INTERRUPT_MS = 1_000;
const SERVER_INTERRUPT_MS = 10_000;

interface Parsed {
  readonly options: Options;
  readonly args: readonly string[];
  readonly rest: readonly string[];
}

/** @throws UsageError */
function parse(command: Command, words: readonly string[]): Parsed {
  const end = words.indexOf('--');
  const own = end === -1 ? words : words.slice(0, end);
  const config = Object.fromEntries(
    Object.entries(optionsOf(command)).map(([name, { type, short, multiple }]) => [
      name,
      { type, ...(short === undefined ? {} : { short }), ...(multiple === undefined ? {} : { multiple }) },
    ]),
  ) as ParseArgsOptionsConfig;
  let parsed: { values: Record<string, unknown>; positionals: string[] };
  try {
    parsed = parseArgs({ args: [...own], options: config, allowPositionals: true, strict: true });
  } catch (error) {
    throw new UsageError((error as Error).message.split('. ')[0]);
  }
  const options = new Options(parsed.values);
  const after = end === -1 ? [] : words.slice(end + 1);
  const args = command.rest === undefined ? [...parsed.positionals, ...after] : parsed.positionals;
  const { least, most } = arityOf(command);
  if (!options.flag('help') && (args.length < least || args.length > most)) {
    throw new UsageError(
      args.length < least
        ? `${command.args?.[args.length]?.replace('…', '')} is missing`
        : `too many arguments: ${args[most]}`,
    );
  }
  return { options, args, rest: command.rest === undefined ? [] : after };
}

function refuse(error: UsageError, command: Command): number {
  process.stderr.write(
    `usage: ${usageOf(command)}\nberth: ${error.message}\n  next: berth help ${shortest(command)}\n`,
  );
  return EXIT.usage;
}

async function run(command: Command, words: readonly string[]): Promise<number> {
  let parsed: Parsed;
  try {
    parsed = parse(command, words);
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
  const terminal = new Terminal(options.flag('json') ? 'json' : options.flag('quiet') ? 'quiet' : 'human');
  const place = { profile: options.text('profile'), url: options.text('url') };
  const session = new Session(readEnv(), place, terminal);
  try {
    return (
      (await command.run({ args, rest, options, terminal, session, signal: interrupted.signal })) ?? EXIT.done
    );
  } catch (error) {
    if (error instanceof UsageError) return refuse(error, command);
    const reason: unknown = interrupted.signal.reason;
    if (error === reason) return EXIT.interrupted;
    if ((error as Partial<Refusal>).name === 'StartError') {
      process.stderr.write(`berth: ${(error as Refusal).message}\n`);
      return (error as Refusal).exit_code;
    }
    terminal.warn(explain(error, command, args, session.env));
    return exitCodeOf(error);
  }
}

/** Options of all commands may precede the command: `berth --json ls`. */
function commandFirst(words: readonly string[]): readonly string[] {
  let taken = 0;
  while (taken < words.length) {
    const [name = ''] = (words[taken] ?? '').replace(/^--/, '').split('=', 1);
    const option = words[taken] === '-q' ? COMMON_OPTIONS['quiet'] : COMMON_OPTIONS[name];
    if (option === undefined || name === 'help' || !words[taken]?.startsWith('-')) break;
    taken += option.type === 'string' && !words[taken]?.includes('=') ? 2 : 1;
  }
  const rest = words.slice(taken);
  const end = rest.includes('--') ? rest.indexOf('--') : rest.length;
  return [...rest.slice(0, end), ...words.slice(0, taken), ...rest.slice(end)];
}

async function main(said: readonly string[]): Promise<number> {
  const words = commandFirst(said);
  const [first] = words;
  if (first === '__complete') {
    const session = new Session(readEnv(), {}, new Terminal('quiet'));
    const next = await complete(words.slice(1), () => session.berth());
    process.stdout.write(next.map((each) => `${each}\n`).join(''));
    return EXIT.done;
  }
  if (first === 'version' || first === '--version') {
    process.stdout.write(`berth ${version()}\n`);
    return EXIT.done;
  }
  const asks = first === 'help' || first === '--help' || first === '-h';
  const found = findCommand(asks ? words.slice(1) : words);
  if (asks && words.length === 1) {
    process.stdout.write(helpOfAll());
    return EXIT.done;
  }
  if (found === undefined && asksAboutNoun(asks ? words.slice(1) : words, asks)) {
    process.stdout.write(helpFor(asks ? words.slice(1) : words));
    return EXIT.done;
  }
  if (found === undefined) {
    process.stderr.write(words.length === 0 ? helpOfAll() : helpFor(asks ? words.slice(1) : words));
    return EXIT.usage;
  }
  if (asks) {
    process.stdout.write(helpOf(found.command));
    return EXIT.done;
  }
  return run(found.command, words.slice(found.taken));
}

// A reader that closes the pipe (`berth ls | head`) is no failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) =>
  process.exit(error.code === 'EPIPE' ? EXIT.done : EXIT.failed),
);
// Without a reader, the work and its exit code stay the same.
process.stderr.on('error', () => undefined);
process.exitCode = await main(process.argv.slice(2));
