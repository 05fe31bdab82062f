/** Commands inside guests: exec, console log, metrics. */
import { setTimeout as pause } from 'node:timers/promises';
import type { Answer, MetricsSample } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { durationOption, durationText } from '../duration.ts';
import { EXIT } from '../exit-codes.ts';
import { fetchWithoutTimeout } from '../fetch-without-timeout.ts';
import { sizeCell, timeCell } from '../format.ts';
import { newPart } from '../log-tail.ts';
import { whole } from '../numbers.ts';
import type { Cell } from '../table.ts';

/** The API's limit. */
const MAX_TIMEOUT_SECONDS = 600;
const TIMEOUT_SECONDS = 60;
const OUTPUT = '1 MiB';
const MAX_TAIL_KIB = 1024;
const TAIL_KIB = 64;
/** As in a shell. */
const NO_SUCH_PROGRAM = 127;
const FOLLOW_MS = 2_000;
/** One row for five minutes, so that an hour fits on a screen. */
const ROW_SECONDS = 300;

function within(name: string, text: string | undefined, most: number): number | undefined {
  const number = whole(name, text);
  if (number === undefined || (number >= 1 && number <= most)) return number;
  throw new UsageError(`--${name} takes 1 to ${most}, not ${number}`);
}

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

async function logs({ args, options, session, terminal, signal }: Call): Promise<undefined> {
  const tail_kib = within('tail', options.text('tail'), MAX_TAIL_KIB) ?? TAIL_KIB;
  const follow = options.flag('follow');
  const berth = session.berth();
  const { id } = await berth.instances.find(args[0] ?? '');
  const read = (kib: number) =>
    berth.call('getConsoleLog', { path: { id }, query: { tail_kib: kib } }, { signal });
  const print = (log: string) =>
    terminal.format === 'json' ? terminal.jsonLine({ log }) : terminal.guest(log);
  // To follow, read at least as much as the next read returns.
  let before = await read(follow ? Math.max(tail_kib, TAIL_KIB) : tail_kib);
  print(before.slice(-tail_kib * 1024));
  // A console may end inside a line, where the shell's prompt would continue.
  if (!follow && process.stdout.isTTY && before !== '' && !before.endsWith('\n')) terminal.say('');
  while (follow) {
    await pause(FOLLOW_MS, undefined, { signal }).catch(() => signal.throwIfAborted());
    const now = await read(TAIL_KIB);
    const more = newPart(before, now);
    if (more !== '') print(more);
    before = now;
  }
  return undefined;
}

function rowOf({ at, cpu_share, memory, disk, network }: MetricsSample): Cell[] {
  return [
    timeCell(at),
    cpu_share === null ? '-' : { text: `${Math.round(cpu_share * 100)} %`, value: cpu_share },
    sizeCell(memory.used_bytes),
    sizeCell(memory.host_bytes),
    sizeCell(disk.read_bytes),
    sizeCell(disk.written_bytes),
    sizeCell(network.received_bytes),
    sizeCell(network.sent_bytes),
  ];
}

async function metrics({ args, session, terminal }: Call): Promise<undefined> {
  const berth = session.berth();
  const { id } = await berth.instances.find(args[0] ?? '');
  const found = await berth.call('getVmMetrics', { path: { id } });
  if (terminal.format === 'json') return void terminal.json(found);
  const { now, samples, interval_seconds } = found;
  const step = Math.max(1, Math.round(ROW_SECONDS / interval_seconds));
  // Counted from the newest, so that rows have a fixed age.
  const rows = samples.filter((_, at) => (samples.length - 1 - at) % step === step - 1);
  terminal.list([...rows, now].reverse(), {
    headings: ['AT', 'CPU', 'MEMORY', 'HOST MEMORY', 'READ', 'WRITTEN', 'RECEIVED', 'SENT'],
    row: rowOf,
    quiet: ({ at }) => at,
    empty: '',
  });
}

export const GUEST_COMMANDS: readonly Command[] = [
  {
    name: 'exec',
    args: ['NAME'],
    names_instances: true,
    rest: 'COMMAND…',
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
  {
    name: 'logs',
    args: ['NAME'],
    names_instances: true,
    summary: "print the end of the guest's console output",
    example: 'berth logs web -f',
    options: {
      follow: { type: 'boolean', short: 'f', help: 'then print new output as it comes, until Ctrl-C' },
      tail: {
        type: 'string',
        value: 'KIB',
        field: 'tail_kib',
        help: `how many KiB of the end; at most ${MAX_TAIL_KIB}; default: ${TAIL_KIB}`,
      },
    },
    run: logs,
  },
  {
    name: 'metrics',
    args: ['NAME'],
    names_instances: true,
    lists: true,
    summary: 'show what a VM uses, now and over the last hour; bytes count since the boot',
    example: 'berth metrics web',
    run: metrics,
  },
];
