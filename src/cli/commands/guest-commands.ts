/** Commands inside guests: exec, console log, metrics. */
import { setTimeout as pause } from 'node:timers/promises';
import type { MetricsSample } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { grown } from '../log-growth.ts';
import { whole } from '../numbers.ts';
import { patientFetch } from '../patient-fetch.ts';
import { bytes, clock } from '../words.ts';

/** The API's limit. */
const MAX_TIMEOUT_SECONDS = 600;
const TIMEOUT_SECONDS = 60;
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

async function exec(call: Call): Promise<number> {
  const { args, rest, options, session, terminal, signal } = call;
  if (rest.length === 0) throw new UsageError('the command is missing: berth exec NAME -- COMMAND…');
  const timeout_seconds = within('timeout', options.text('timeout'), MAX_TIMEOUT_SECONDS) ?? TIMEOUT_SECONDS;
  const berth = session.berth({ fetch: await patientFetch() });
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
    if (result.truncated) terminal.warn('berth: it printed more; this is the first MiB');
  }
  if (result.exit_code === NO_SUCH_PROGRAM && rest.length === 1 && /\s/.test(rest[0] ?? ''))
    terminal.warn(`berth: that names one program; for a line of the shell: berth exec ${name} -- sh -c '…'`);
  if (result.exit_code !== null) return result.exit_code;
  terminal.warn(`berth: ${name} had not ended the command after ${timeout_seconds} s; it is killed`);
  return EXIT.timed_out;
}

async function logs({ args, options, session, terminal, signal }: Call): Promise<undefined> {
  const tail_kib = within('tail', options.text('tail'), MAX_TAIL_KIB) ?? TAIL_KIB;
  const follow = options.flag('follow');
  const berth = session.berth();
  const { id, name, vm } = await berth.instances.find(args[0] ?? '');
  if (vm.boot === 0)
    terminal.warn(`berth: ${name} has never run, so it has no console output\n  next: berth start ${name}`);
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
    const more = grown(before, now);
    if (more !== '') print(more);
    before = now;
  }
  return undefined;
}

const orDash = (count: number | null) => (count === null ? '-' : bytes(count));

function rowOf({ at, cpu_share, memory, disk, network }: MetricsSample): string[] {
  const { used_bytes, host_bytes } = memory;
  return [
    clock(at),
    cpu_share === null ? '-' : `${Math.round(cpu_share * 100)} %`,
    orDash(used_bytes),
    bytes(host_bytes),
    bytes(disk.read_bytes),
    bytes(disk.written_bytes),
    orDash(network.received_bytes),
    orDash(network.sent_bytes),
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
  terminal.list([...rows, now], {
    headings: ['AT', 'CPU', 'MEMORY', 'OF THE HOST', 'READ', 'WRITTEN', 'RECEIVED', 'SENT'],
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
    summary: 'run a command as root, without SSH; prints its output, and exits with its exit code',
    example: 'berth exec web -- systemctl is-active ssh',
    options: {
      timeout: {
        type: 'string',
        value: 'SECONDS',
        help: `when to kill it; at most ${MAX_TIMEOUT_SECONDS}, default: ${TIMEOUT_SECONDS}`,
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
        help: `how much; at most ${MAX_TAIL_KIB}, default: ${TAIL_KIB}`,
      },
    },
    run: logs,
  },
  {
    name: 'metrics',
    args: ['NAME'],
    names_instances: true,
    summary: 'show what a VM uses, now and over the last hour; bytes count since the boot',
    example: 'berth metrics web',
    run: metrics,
  },
];
