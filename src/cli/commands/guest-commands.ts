/** Commands inside guests. */
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { whole } from '../numbers.ts';
import { patientFetch } from '../patient-fetch.ts';

/** The API's limit. */
const MAX_TIMEOUT_SECONDS = 600;
const TIMEOUT_SECONDS = 60;
/** As in a shell. */
const NO_SUCH_PROGRAM = 127;

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
];
