/**
 * The commands on VMs: start, stop, restart, suspend and flush; `berth console` opens the serial console, and
 * `berth logs` prints its output.
 */
import { once } from 'node:events';
import { setTimeout as pause } from 'node:timers/promises';
import {
  type Berth,
  BerthError,
  type FlushReceipt,
  type Generation,
  type Instance,
  type Vm,
} from '../../../client/src/berth.ts';
import { type Call, type Command, INSTANCE, INSTANCES, NO_WAIT } from '../command.ts';
import { CommandError, EXIT, InstanceError, UsageError } from '../command-error.ts';
import { bytes, duration } from '../table.ts';
import { wholeNumberOption } from '../values.ts';
import { waitFor, watched } from '../waiting.ts';

/**
 * @param before the end as last read; @param now the end as read now, which may start later
 * @returns the part of `now` after `before`; all of `now` without an overlap. The longest overlap counts.
 */
export function newPart(before: string, now: string): string {
  if (now.startsWith(before)) return now.slice(before.length);
  // Either may start inside a character, so compare whole lines.
  const whole_lines = now.slice(now.indexOf('\n') + 1);
  const first_line = whole_lines.slice(0, whole_lines.indexOf('\n') + 1);
  if (first_line === '') return now;
  for (let at = before.indexOf(first_line); at !== -1; at = before.indexOf(first_line, at + 1)) {
    if (whole_lines.startsWith(before.slice(at))) return whole_lines.slice(before.length - at);
  }
  return now;
}

async function flush(call: Call): Promise<undefined> {
  const { args, session, terminal, signal, options } = call;
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const { id, name } = instance;
  const look = `berth show ${name}`;
  const receipt = await watched(call, `flushing ${name}`, 'the server goes on flushing', look, () =>
    berth.instances.flushVm(id, { signal }),
  );
  const [wanted, pinned] = [options.text('name'), options.flag('pin')];
  const marks = wanted !== undefined || pinned;
  const kept = marks ? await mark(berth, instance, receipt, { name: wanted, pinned }) : null;
  const { generation } = receipt;
  terminal.done(
    `${name}: ${savedBy(receipt)}${wanted === undefined ? '' : `, named ${wanted}`}${pinned ? ', pinned' : ''}`,
    kept === null ? receipt : { ...receipt, name: kept.name, pinned: kept.pinned },
    String(generation),
  );
}

function savedBy({
  generation,
  dirty_bytes,
  uploaded_bytes,
  duration_ms,
  consistency,
}: FlushReceipt): string {
  if (generation === 0) return 'nothing to save yet';
  return dirty_bytes === 0
    ? `all saved already, as generation ${generation}`
    : `${bytes(dirty_bytes)} saved as generation ${generation}, ${bytes(uploaded_bytes)} uploaded in ${duration(duration_ms)}, consistency ${consistency}`;
}

interface Marks {
  readonly name: string | undefined;
  readonly pinned: boolean;
}

/** A flush with nothing to save makes no generation. Then the name goes to the current one, unless that has another name. */
async function mark(
  berth: Berth,
  { id, name: instance }: Instance,
  { generation, dirty_bytes }: FlushReceipt,
  { name, pinned }: Marks,
): Promise<Generation> {
  if (generation === 0)
    throw new CommandError(`${instance} has written nothing yet, so there is no generation to name or pin`, {
      next: `berth start ${instance}`,
      exit_code: EXIT.state,
    });
  if (dirty_bytes === 0 && name !== undefined) {
    const { data } = await berth.call('listGenerations', { path: { id }, query: { limit: 1 } });
    const current = data[0]?.name ?? null;
    if (current !== null && current !== name)
      throw new CommandError(`all saved already, as generation ${generation}, which is named ${current}`, {
        next: `berth generation name ${instance} ${generation} TEXT`,
        exit_code: EXIT.state,
      });
  }
  const body = { ...(name === undefined ? {} : { name }), ...(pinned ? { pinned: true } : {}) };
  return berth.call('changeGeneration', { path: { id, generation: String(generation) }, body });
}

export const FLUSH: Command = {
  name: 'vm flush',
  short: ['flush'],
  ...INSTANCE,
  summary: 'save what the guest has written as a new generation, and print the receipt',
  details: 'After Ctrl-C the server continues.',
  example: 'berth flush web --name before-upgrade --pin',
  options: {
    name: { type: 'string', value: 'TEXT', help: 'a name for the generation' },
    pin: { type: 'boolean', field: 'pinned', help: 'keep the generation, however old it gets' },
  },
  run: flush,
};

interface Move {
  readonly doing: string;
  readonly done: string;
  readonly to: 'running' | 'stopped' | 'suspended';
  readonly begin: (berth: Berth, id: string, call: Call) => Promise<Vm>;
}

/** Requests all, then waits for each. */
async function move(call: Call, { doing, done, to, begin }: Move): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const berth = session.berth();
  const found: Instance[] = await Promise.all(args.map((each) => berth.instances.find(each)));
  const vms: Vm[] = [];
  for (const { id, name } of found) {
    vms.push(
      await begin(berth, id, call).catch((cause: unknown) => {
        throw new InstanceError(name, cause);
      }),
    );
  }
  const began = performance.now();
  for (const [at, instance] of found.entries()) {
    if (!options.flag('no-wait')) {
      vms[at] = await waitFor(call, berth, instance, to, doing);
      const took = duration(performance.now() - began);
      const how = vms[at]?.state === 'stopped' && !isSaved(vms[at]) ? 'is stopped' : done;
      terminal.say(`${instance.name} ${how} (${took})${ending(instance, vms[at])}`);
    } else terminal.say(`${instance.name}: ${vms[at]?.state}`);
  }
  if (terminal.format === 'json') terminal.json(vms.length === 1 ? vms[0] : vms);
}

/** The VM was recovered: writes are lost. */
function isRecovered(vm: Vm | undefined): boolean {
  return ['recovered', 'cold_boot'].includes(vm?.reason?.code ?? '');
}

/** Not of a VM that never ran, or whose last writes are lost. */
const isSaved = (vm: Vm) => vm.boot > 0 && !isRecovered(vm);

function ending({ name }: Instance, vm: Vm | undefined): string {
  if (isRecovered(vm)) return `\n${vm?.reason?.message}`;
  return vm?.state === 'running' ? `. Log in: berth ssh ${name}` : '';
}

/** A suspended VM is what was asked for, as for a stop of a stopped one. */
async function suspend(berth: Berth, id: string): Promise<Vm> {
  try {
    return await berth.instances.suspendVm(id);
  } catch (error) {
    if (!(error instanceof BerthError) || error.status !== 409) throw error;
    const vm = await berth.vm(id).get();
    if (vm.state === 'suspended' || vm.state === 'suspending') return vm;
    throw error;
  }
}

export const VM_COMMANDS: readonly Command[] = [
  {
    name: 'vm start',
    short: ['start'],
    ...INSTANCES,
    summary: 'start VMs, and wait until SSH works',
    example: 'berth start web',
    options: NO_WAIT,
    run: (call) =>
      move(call, {
        doing: 'starting',
        done: 'runs',
        to: 'running',
        begin: (berth, id) => berth.instances.startVm(id),
      }),
  },
  {
    name: 'vm stop',
    short: ['stop'],
    ...INSTANCES,
    summary: 'shut VMs down, and wait until all their writes are saved',
    example: 'berth stop web',
    options: {
      force: {
        type: 'boolean',
        short: 'f',
        help: 'do not shut the guest down; its completed writes are saved',
      },
      ...NO_WAIT,
    },
    run: (call) =>
      move(call, {
        doing: 'stopping',
        done: 'is stopped; all saved',
        to: 'stopped',
        begin: (berth, id) => berth.instances.stopVm(id, { force: call.options.flag('force') }),
      }),
  },
  {
    name: 'vm restart',
    short: ['restart'],
    ...INSTANCES,
    summary: 'reboot guests',
    example: 'berth restart web',
    options: NO_WAIT,
    run: (call) =>
      move(call, {
        doing: 'restarting',
        done: 'runs again',
        to: 'running',
        begin: (berth, id) => berth.instances.restartVm(id),
      }),
  },
  {
    name: 'vm suspend',
    short: ['suspend'],
    ...INSTANCES,
    summary: 'save the memory and disk of VMs, and end them; start resumes from there',
    example: 'berth suspend web',
    options: NO_WAIT,
    run: (call) =>
      move(call, {
        doing: 'suspending',
        done: 'is suspended; memory and disk saved',
        to: 'suspended',
        begin: suspend,
      }),
  },
  FLUSH,
];

const MAX_TAIL_KIB = 1024;
const TAIL_KIB = 64;
const FOLLOW_MS = 2_000;

async function logs({ args, options, session, terminal, signal }: Call): Promise<undefined> {
  const tail_kib = wholeNumberOption('tail', options.text('tail')) ?? TAIL_KIB;
  if (tail_kib < 1 || tail_kib > MAX_TAIL_KIB)
    throw new UsageError(`--tail takes 1 to ${MAX_TAIL_KIB}, not ${tail_kib}`);
  const follow = options.flag('follow');
  const timestamps = options.flag('timestamps') ? 'true' : undefined;
  const berth = session.berth();
  const { id, name, vm } = await berth.instances.find(args[0] ?? '');
  const read = (kib: number) =>
    berth.call('getConsoleLog', { path: { id }, query: { tail_kib: kib, timestamps } }, { signal });
  const print = (log: string) =>
    terminal.format === 'json' ? terminal.jsonLine({ log }) : terminal.guest(log);
  // To follow, read at least as much as the next read returns.
  let before = await read(follow ? Math.max(tail_kib, TAIL_KIB) : tail_kib);
  print(timestamps ? lastLines(before, tail_kib * 1024) : before.slice(-tail_kib * 1024));
  if (before === '' && terminal.format === 'human') {
    const [why, next] =
      vm.boot === 0 ? ['never ran', `\n  next: berth start ${name}`] : ['has printed nothing', ''];
    terminal.warn(`berth: ${name} ${why}, so its console log is empty${next}`);
  }
  if (follow && vm.boot === 0 && terminal.format === 'human')
    terminal.warn('berth: waiting for its first start; Ctrl-C ends');
  // A console may end inside a line, where the shell's prompt would continue.
  if (!follow && process.stdout.isTTY && before !== '' && !before.endsWith('\n')) terminal.say('');
  while (follow) {
    await pause(FOLLOW_MS, undefined, { signal }).catch(() => signal.throwIfAborted());
    const now = await read(TAIL_KIB);
    const more = newPart(before, now);
    if (more !== '') print(more);
    before = now;
  }
}

/** At most so many characters, from the beginning of a line. */
function lastLines(text: string, characters: number): string {
  if (text.length <= characters) return text;
  return text.slice(text.indexOf('\n', text.length - characters) + 1);
}

export const LOGS: Command = {
  name: 'logs',
  ...INSTANCE,
  summary: "print the end of the guest's console output",
  example: 'berth logs web -f --timestamps',
  options: {
    follow: { type: 'boolean', short: 'f', help: 'then print new output as it comes, until Ctrl-C' },
    timestamps: { type: 'boolean', short: 't', help: 'before each line the time at which it arrived, UTC' },
    tail: {
      type: 'string',
      value: 'KIB',
      field: 'tail_kib',
      help: `how many KiB of the end; at most ${MAX_TAIL_KIB}; default: ${TAIL_KIB}`,
    },
  },
  run: logs,
};

/** Ctrl-], as in telnet and virsh: shells and editors hardly use it. */
const END_BYTE = 0x1d;
/** The close codes of a VM's end, or of our own. */
const OVER = 1000;
/** How long to wait for the server's close frame, which a dead network never delivers. */
const CLOSE_MS = 1_000;

/** The serial console as a terminal, until Ctrl-]. Bytes pass unchanged in both directions. */
async function openConsole(call: Call): Promise<undefined> {
  const { args, session, terminal } = call;
  const { stdin, stdout } = process;
  if (stdin.isTTY !== true || stdout.isTTY !== true) {
    throw new CommandError('a console needs a terminal', {
      next: `berth exec ${args[0] ?? 'NAME'} COMMAND`,
      exit_code: EXIT.usage,
    });
  }
  const berth = session.berth();
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const { ticket } = await berth.call('createConsoleTicket', { path: { id } });
  const path = `/v1/instances/${id}/vm/console/stream?ticket=${encodeURIComponent(ticket)}`;
  const socket = new WebSocket(berth.url.replace(/^http/, 'ws') + path);
  socket.binaryType = 'arraybuffer';
  const closed = once(socket, 'close') as Promise<[CloseEvent]>;
  // The close event follows, with the reason.
  socket.addEventListener('error', () => undefined);
  socket.addEventListener('message', ({ data }) => void stdout.write(Buffer.from(data as ArrayBuffer)));
  let ended_here = false;
  const given_up = Promise.withResolvers<null>();
  const onTyped = (typed: Buffer) => {
    const end = typed.indexOf(END_BYTE);
    const before = end === -1 ? typed : typed.subarray(0, end);
    if (before.length > 0 && socket.readyState === WebSocket.OPEN) socket.send(new Uint8Array(before));
    if (end === -1) return;
    ended_here = true;
    socket.close(OVER);
    setTimeout(() => given_up.resolve(null), CLOSE_MS).unref();
  };
  // Before this, input is ignored and Ctrl-C ends the wait.
  await Promise.race([once(socket, 'open'), closed]);
  let end: [CloseEvent] | null;
  // Before the message, so that an early Ctrl-C goes to the guest.
  stdin.setRawMode(true);
  try {
    if (socket.readyState === WebSocket.OPEN)
      terminal.warn(`Connected to ${name}. Enter shows the prompt; Ctrl-] ends.`);
    stdin.on('data', onTyped).resume();
    end = await Promise.race([closed, given_up.promise]);
  } finally {
    stdin.off('data', onTyped).pause();
    stdin.setRawMode(false);
    stdout.write('\n');
  }
  // Otherwise the socket keeps the process alive until TCP gives up.
  if (end === null) process.exit(EXIT.done);
  const [{ code, reason }] = end;
  if (ended_here || code === OVER) return undefined;
  throw new CommandError(reason || `the connection to the console was lost (${code})`, {
    next: `berth console ${name}`,
  });
}

export const CONSOLE: Command = {
  name: 'console',
  ...INSTANCE,
  summary: 'open the serial console, live, with a root shell; Ctrl-] ends it',
  example: 'berth console web',
  run: openConsole,
};
