/**
 * The commands `berth exec …`: start a command in a guest, attach to one that runs, list them, and end one. A command
 * in the guest continues if this process ends.
 */
import type { Answer, Berth, Exec, Instance } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import { type Call, type Command, INSTANCE } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { shellWord } from '../explain.ts';
import type { Attachment } from '../guest-connections.ts';
import { collect } from '../reading.ts';
import { sizeCell, timeCell } from '../table.ts';
import { durationOption } from '../values.ts';

/** With --json the API's limit, because the result is one answer. */
const JSON_TIMEOUT = { most_seconds: 600, usual_seconds: 60 } as const;
const MAX_TIMEOUT_SECONDS = 30 * 24 * 3600;
/** As in a shell. */
const NO_SUCH_PROGRAM = 127;
const SIGNALLED = 128;

function timeoutOf({ options }: Call, most_seconds = MAX_TIMEOUT_SECONDS): number | null {
  const seconds = durationOption('timeout', options.text('timeout'));
  if (seconds === undefined) return null;
  if (seconds >= 1 && seconds <= most_seconds) return seconds;
  throw new UsageError(`--timeout takes 1s to ${durationText(most_seconds)}, not ${durationText(seconds)}`);
}

function environmentOf({ options }: Call): Record<string, string> {
  const pairs = (options.list('env') ?? []).map((each) => {
    const at = each.indexOf('=');
    if (at < 1) throw new UsageError(`--env takes NAME=VALUE, not ${each}`);
    return [each.slice(0, at), each.slice(at + 1)] as const;
  });
  return Object.fromEntries(pairs);
}

function inputOf({ options, args }: Call): Attachment['input'] {
  const { stdin, stdout } = process;
  if (options.flag('tty')) {
    if (stdin.isTTY === true && stdout.isTTY === true) return 'terminal';
    throw new CommandError('-t needs a terminal', {
      next: `berth exec ${args[0] ?? 'NAME'} COMMAND`,
      exit_code: EXIT.usage,
    });
  }
  if (options.flag('detach') || options.flag('no-stdin')) return 'none';
  return stdin.isTTY === true && !options.flag('interactive') ? 'none' : 'stdin';
}

async function exec(call: Call): Promise<number> {
  const { args, rest, options, session, terminal, signal } = call;
  if (rest.length === 0) throw new UsageError('COMMAND is missing');
  if (terminal.format === 'json' && !options.flag('detach')) return execAsJson(call);
  const timeout_seconds = timeoutOf(call);
  const input = inputOf(call);
  const { attach, terminalSize } = await import('../guest-connections.ts');
  const berth = session.berth();
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const [cwd, user] = [options.text('cwd'), options.text('user')];
  const body = {
    ...{ command: [...rest], env: environmentOf(call), stdin: input !== 'none', timeout_seconds },
    ...(cwd === undefined ? {} : { cwd }),
    ...(user === undefined ? {} : { user }),
    ...(input === 'terminal' ? { tty: terminalSize() } : {}),
  };
  const started = await berth.call('createExec', { path: { id }, body }, { signal });
  if (options.flag('detach')) {
    terminal.done(
      `Started ${started.id}. Its output: berth exec attach ${name} ${started.id}`,
      started,
      started.id,
    );
    return EXIT.done;
  }
  const place = { berth, instance: { id, name }, exec_id: started.id, offset: 0 };
  const ended = await attach({ ...place, input, terminal, signal });
  if (ended?.exit_code === NO_SUCH_PROGRAM && rest.length === 1 && /\s/.test(rest[0] ?? ''))
    terminal.warn(`berth: that names one program; for a line of the shell: berth exec ${name} sh -c '…'`);
  return codeOf(call, name, started.id, ended);
}

/** The whole result at the end, by `POST …/vm/exec`. */
async function execAsJson(call: Call): Promise<number> {
  const { args, rest, options, session, terminal, signal } = call;
  const timeout_seconds = timeoutOf(call, JSON_TIMEOUT.most_seconds) ?? JSON_TIMEOUT.usual_seconds;
  const { fetchWithoutTimeout } = await import('../guest-connections.ts');
  const berth = session.berth({ fetch: await fetchWithoutTimeout() });
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const reads = process.stdin.isTTY !== true && !options.flag('no-stdin');
  const stdin = reads ? await terminal.stdin() : '';
  const body = { command: [...rest], stdin, timeout_seconds };
  const progress = terminal.progress(`running on ${name}; the output appears at the end`);
  const result = await berth
    .call('execInVm', { path: { id }, body }, { signal })
    .finally(() => progress.end());
  terminal.json(result);
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
      `berth: the output was cut at 1 MiB${own}\n  next: the same without --json, which has no limit`,
    );
  }
  if (exit_code === null) return EXIT.timed_out;
  return truncated && exit_code === 0 ? EXIT.cut : exit_code;
}

/** The exit code of the command; as in a shell, 128 + n if signal n ended it. */
async function codeOf(
  { terminal }: Call,
  name: string,
  exec_id: string,
  ended: Exec | null,
): Promise<number> {
  if (ended === null) {
    terminal.warn(`berth: detached; the command runs on\n  next: berth exec attach ${name} ${exec_id}`);
    return EXIT.done;
  }
  if (ended.state === 'lost') {
    const why =
      ended.lost_with === 'supervisor'
        ? `something in ${name} ended the process that runs commands there, as kill -9 -1 does; ${name} did not restart`
        : `${name} restarted or stopped before the command ended`;
    throw new CommandError(why, { exit_code: EXIT.state });
  }
  if (ended.timed_out) {
    terminal.warn(`berth: the command on ${name} was killed at its timeout: it had not ended`);
    return EXIT.timed_out;
  }
  if (ended.exit_code !== null) return ended.exit_code;
  const { constants } = await import('node:os');
  const numbers: Readonly<Record<string, number>> = constants.signals;
  return SIGNALLED + (numbers[ended.signal ?? ''] ?? 0);
}

interface Found {
  readonly berth: Berth;
  readonly instance: Instance;
}

async function find({ session, args }: Call): Promise<Found> {
  const berth = session.berth();
  return { berth, instance: await berth.instances.find(args[0] ?? '') };
}

async function attachTo(call: Call): Promise<number> {
  const { berth, instance } = await find(call);
  const { id, name } = instance;
  const exec_id = call.args[1] ?? '';
  const { terminal, signal, options } = call;
  const input = inputOf(call);
  const given = options.text('offset');
  const offset = given === undefined ? null : Number(given);
  if (offset !== null && (!Number.isSafeInteger(offset) || offset < 0))
    throw new UsageError('--offset takes a number of bytes');
  await berth.call('getExec', { path: { id, exec_id } });
  const { attach } = await import('../guest-connections.ts');
  const wanted = options.flag('tty') || options.flag('interactive') ? input : 'none';
  const place = { berth, instance: { id, name }, exec_id, offset };
  return codeOf(call, name, exec_id, await attach({ ...place, input: wanted, terminal, signal }));
}

const stateOf = ({ state, exit_code, signal, timed_out }: Exec) =>
  state !== 'exited' ? state : timed_out ? 'timed out' : (signal ?? `exited ${exit_code}`);

async function list(call: Call): Promise<undefined> {
  const { berth, instance } = await find(call);
  call.terminal.list(await collect(berth.list('listExecs', { path: { id: instance.id } })), {
    headings: ['ID', 'STATE', 'OUTPUT', 'STARTED', 'COMMAND'],
    row: (each) => [
      each.id,
      stateOf(each),
      sizeCell(each.output_bytes),
      timeCell(each.started_at),
      each.command.map(shellWord).join(' '),
    ],
    quiet: (each) => each.id,
    empty: `Nothing was run on ${instance.name} with berth exec. berth exec ${instance.name} COMMAND runs a command.`,
  });
}

async function kill(call: Call): Promise<undefined> {
  const { berth, instance } = await find(call);
  const path = { id: instance.id, exec_id: call.args[1] ?? '' };
  const signal = call.options.text('signal');
  if (signal === undefined) await berth.call('killExec', { path });
  else await berth.call('signalExec', { path, body: { signal: signal as 'SIGTERM' } });
  const sent = signal ?? 'SIGKILL';
  call.terminal.done(
    `Sent ${sent} to ${path.exec_id}.`,
    { signalled: path.exec_id, signal: sent },
    path.exec_id,
  );
}

const STREAMS: NonNullable<Command['options']> = {
  interactive: { type: 'boolean', short: 'i', help: 'pass stdin on, also if it is a terminal' },
  tty: { type: 'boolean', short: 't', help: 'a terminal for the command; Ctrl-] detaches' },
  'no-stdin': { type: 'boolean', short: 'n', help: 'no input; default: stdin, unless that is a terminal' },
};

export const EXEC_COMMANDS: readonly Command[] = [
  {
    name: 'exec',
    ...INSTANCE,
    rest: 'COMMAND…',
    fields: { command: 'COMMAND', stdin: 'the input' },
    summary: 'run a command as root, without SSH, and exit with its exit code',
    details: `Options of Berth stand before COMMAND: the first word after NAME begins it, and all that follows is its own. Input and output are streamed, of any size. The command outlives this process, a restart of the server and a suspend: attach to it again. While this process does not read, and for a minute after it was lost, the command waits; if a part of the output is lost all the same, the exit code is 123. With --json (and not -d) the whole result is printed at the end: 1 MiB of output and ten minutes at most.`,
    example: 'berth exec -it web bash',
    options: {
      ...STREAMS,
      detach: { type: 'boolean', short: 'd', help: 'return at once; the command runs on' },
      env: {
        type: 'string',
        short: 'e',
        multiple: true,
        value: 'NAME=VALUE',
        field: 'env',
        help: 'set a variable; repeatable',
      },
      cwd: { type: 'string', value: 'FOLDER', field: 'cwd', help: 'the folder to run in; default: /' },
      user: {
        type: 'string',
        short: 'u',
        value: 'USER',
        field: 'user',
        help: 'the user of the guest; default: root',
      },
      timeout: {
        type: 'string',
        value: 'DURATION',
        field: 'timeout_seconds',
        help: 'kill the command after this time; default: never (with --json: 60s)',
      },
    },
    run: exec,
  },
  {
    name: 'exec attach',
    args: ['NAME', 'EXEC'],
    names_instances: true,
    summary: 'show the output of a command that runs or has ended, and exit with its exit code',
    details:
      'The last 8 MiB of the output are kept; a line on stderr says how much is missing before them. Where output is missing after --offset, or in the middle, it ends with exit code 123. -it attaches your keyboard to a command with a terminal.',
    example: 'berth exec attach web exec_01k5x8m2vq7r4t9wz3b6c8d0ef',
    options: {
      ...STREAMS,
      offset: {
        type: 'string',
        value: 'BYTES',
        field: 'offset',
        help: 'begin after this many bytes of output; default: at the first that is kept',
      },
    },
    run: attachTo,
  },
  {
    name: 'exec ls',
    ...INSTANCE,
    summary: 'list commands of berth exec: all that run, and the last 100 that ended',
    example: 'berth exec ls web',
    run: list,
  },
  {
    name: 'exec kill',
    args: ['NAME', 'EXEC'],
    names_instances: true,
    summary: 'end a command with everything in its process group',
    example: 'berth exec kill web exec_01k5x8m2vq7r4t9wz3b6c8d0ef',
    options: {
      signal: {
        type: 'string',
        value: 'SIGNAL',
        field: 'signal',
        help: 'send this signal, such as SIGTERM; default: SIGKILL',
      },
    },
    run: kill,
  },
];
