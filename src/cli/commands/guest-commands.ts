/** Commands inside guests. */
import type { Answer } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/durations.ts';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { durationOption } from '../duration.ts';
import { EXIT } from '../exit-codes.ts';
import { fetchWithoutTimeout } from '../fetch-without-timeout.ts';

/** The API's limit. */
const MAX_TIMEOUT_SECONDS = 600;
const TIMEOUT_SECONDS = 60;
const OUTPUT = '1 MiB';
/** As in a shell. */
const NO_SUCH_PROGRAM = 127;

function timeoutOf({ options }: Call): number {
  const seconds = durationOption('timeout', options.text('timeout')) ?? TIMEOUT_SECONDS;
  if (seconds >= 1 && seconds <= MAX_TIMEOUT_SECONDS) return seconds;
  throw new UsageError(
    `--timeout takes 1s to ${durationText(MAX_TIMEOUT_SECONDS)}, not ${durationText(seconds)}`,
  );
}

async function exec(call: Call): Promise<number> {
  const { args, rest, options, session, terminal, signal } = call;
  if (rest.length === 0) throw new UsageError('COMMAND is missing');
  const timeout_seconds = timeoutOf(call);
  const berth = session.berth({ fetch: await fetchWithoutTimeout() });
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const reads = process.stdin.isTTY !== true && !options.flag('no-stdin');
  const stdin = reads ? await terminal.stdin() : '';
  const body = { command: [...rest], stdin, timeout_seconds };
  const progress = terminal.progress(`running on ${name}; the output appears at the end`);
  const result = await berth
    .call('execInVm', { path: { id }, body }, { signal })
    .finally(() => progress.end());
  if (terminal.format === 'json') terminal.json(result);
  else {
    terminal.guest(result.stdout);
    terminal.guest(result.stderr, 'stderr');
  }
  if (result.exit_code === NO_SUCH_PROGRAM && rest.length === 1 && /\s/.test(rest[0] ?? ''))
    terminal.warn(`berth: that names one program; for a line of the shell: berth exec ${name} sh -c '…'`);
  return endOf(call, result, name, timeout_seconds);
}

/** Tells why the result is not the command's whole. @returns the exit code */
function endOf(
  { terminal }: Call,
  { exit_code, truncated }: Answer<'execInVm'>,
  name: string,
  timeout_seconds: number,
): number {
  if (exit_code === null) {
    const after = durationText(timeout_seconds);
    terminal.warn(`berth: the command on ${name} was killed after ${after}: it had not ended`);
  }
  if (truncated) {
    const own = exit_code === null ? '' : `; the command itself ended with exit code ${exit_code}`;
    terminal.warn(
      `berth: the output was cut at ${OUTPUT}${own}\n  next: berth ssh ${name} COMMAND, which has no limit`,
    );
  }
  if (exit_code === null) return EXIT.timed_out;
  return truncated && exit_code === 0 ? EXIT.cut : exit_code;
}

export const GUEST_COMMANDS: readonly Command[] = [
  {
    name: 'exec',
    args: ['NAME'],
    names_instances: true,
    rest: 'COMMAND…',
    fields: { command: 'COMMAND', stdin: 'the input' },
    summary: 'run a command as root, without SSH, and exit with its exit code',
    details: `Options of Berth stand before COMMAND: the first word after NAME begins it, and all that follows is its own. Its output appears at the end, ${OUTPUT} at most: if more is cut from a command that succeeds, the exit code is ${EXIT.cut}.`,
    example: 'berth exec web systemctl is-active ssh',
    options: {
      timeout: {
        type: 'string',
        value: 'DURATION',
        field: 'timeout_seconds',
        help: `kill the command after this time; at most ${durationText(MAX_TIMEOUT_SECONDS)}; default: ${durationText(TIMEOUT_SECONDS)}`,
      },
      'no-stdin': {
        type: 'boolean',
        short: 'n',
        help: 'no input; default: stdin, unless that is a terminal',
      },
    },
    run: exec,
  },
];
