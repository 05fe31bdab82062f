/** Commands on VMs. */
import { setTimeout as pause } from 'node:timers/promises';
import {
  type Berth,
  BerthError,
  type FlushReceipt,
  type Generation,
  type Instance,
  type MetricsSample,
  type Vm,
} from '../../../client/src/berth.ts';
import { type Call, type Command, NO_WAIT } from '../command.ts';
import { CommandError, InstanceError, UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { newPart } from '../log-tail.ts';
import { whole } from '../numbers.ts';
import { collect } from '../reading.ts';
import { bytes, type Cell, cell, duration, sizeCell } from '../table.ts';
import { waitFor, watched } from '../waiting.ts';

/** `berth flush`: saves what the guest has written, and names or pins the generation. */

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
  args: ['NAME'],
  names_instances: true,
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
    args: ['NAME…'],
    names_instances: true,
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
    args: ['NAME…'],
    names_instances: true,
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
    args: ['NAME…'],
    names_instances: true,
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
    args: ['NAME…'],
    names_instances: true,
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

/** berth top: what the running VMs use now, renewed until Ctrl-C. */

/** Between two samples, over which rates are averages. */
const EVERY_MS = 2_000;
/** Clears the terminal, and begins at its top. */
const CLEAR = '\x1b[H\x1b[2J';

type Samples = ReadonlyMap<string, MetricsSample>;

/** A running VM in one row; rates are per second. */
interface Use {
  readonly name: string;
  readonly instance_id: string;
  /** 1 is one processor. */
  readonly cpu: number;
  readonly memory_bytes: number;
  readonly read_bytes: number;
  readonly written_bytes: number;
  /** Null: its host does not know. */
  readonly received_bytes: number | null;
  readonly sent_bytes: number | null;
}

async function top(call: Call): Promise<undefined> {
  const { options, session, terminal, signal } = call;
  const berth = session.berth();
  const once = options.flag('once') || !process.stdout.isTTY || terminal.format !== 'human';
  const read = async () => collect(berth.instances.list({ state: 'running', limit: 200 }));
  let before = await samplesOf(berth, await read());
  for (;;) {
    await pause(EVERY_MS, undefined, { signal });
    const running = await read();
    const now = await samplesOf(berth, running);
    if (!once) terminal.picture(CLEAR);
    show(call, usesOf(running, now, before));
    if (once) return undefined;
    before = now;
  }
}

/** By instance. A VM that has just stopped has none. */
async function samplesOf(berth: Berth, running: readonly Instance[]): Promise<Samples> {
  const samples = new Map<string, MetricsSample>();
  const read = async ({ id }: Instance) => {
    const { now } = await berth.call('getVmMetrics', { path: { id } });
    samples.set(id, now);
  };
  const results = await Promise.allSettled(running.map(read));
  for (const result of results) {
    if (result.status === 'fulfilled') continue;
    const gone = result.reason instanceof BerthError && [404, 409].includes(result.reason.status);
    if (!gone) throw result.reason;
  }
  return samples;
}

/** Of the VMs that have both samples; the busiest first. */
function usesOf(running: readonly Instance[], now: Samples, before: Samples): Use[] {
  const uses = running.flatMap((instance) => {
    const [last, first] = [now.get(instance.id), before.get(instance.id)];
    const seconds = last && first ? (Date.parse(last.at) - Date.parse(first.at)) / 1_000 : 0;
    return last && first && seconds > 0 ? [useOf(instance, last, first, seconds)] : [];
  });
  return uses.sort((a, b) => b.cpu - a.cpu);
}

function useOf(
  { id, name }: Instance,
  { cpu_seconds, memory, disk, network }: MetricsSample,
  before: MetricsSample,
  seconds: number,
): Use {
  // The counters of a VM that was started again begin at 0.
  const rate = (now: number, then: number) => Math.max(0, now - then) / seconds;
  const perhaps = (now: number | null, then: number | null) =>
    now === null || then === null ? null : Math.round(rate(now, then));
  return {
    name,
    instance_id: id,
    cpu: rate(cpu_seconds, before.cpu_seconds),
    memory_bytes: memory.used_bytes ?? memory.host_bytes,
    read_bytes: Math.round(rate(disk.read_bytes, before.disk.read_bytes)),
    written_bytes: Math.round(rate(disk.written_bytes, before.disk.written_bytes)),
    received_bytes: perhaps(network.received_bytes, before.network.received_bytes),
    sent_bytes: perhaps(network.sent_bytes, before.network.sent_bytes),
  };
}

const rateCell = (value: number | null): Cell =>
  value === null ? cell('-', null) : cell(`${bytes(value)}/s`, value);

function show({ terminal }: Call, uses: readonly Use[]): void {
  terminal.list(uses, {
    headings: ['NAME', 'CPU', 'MEMORY', 'READ', 'WRITTEN', 'RECEIVED', 'SENT'],
    row: (use) => [
      use.name,
      cell(`${Math.round(use.cpu * 100)} %`, use.cpu),
      sizeCell(use.memory_bytes),
      rateCell(use.read_bytes),
      rateCell(use.written_bytes),
      rateCell(use.received_bytes),
      rateCell(use.sent_bytes),
    ],
    quiet: ({ name }) => name,
    empty: 'No VM is running. Start one: berth start NAME',
  });
}

export const TOP: Command = {
  name: 'top',
  lists: true,
  summary:
    'show what the running VMs use now, the busiest first, renewed until Ctrl-C. CPU is 100 % for one processor',
  example: 'berth top',
  options: { once: { type: 'boolean', help: 'print one table and end, as without a terminal' } },
  run: top,
};

/** berth logs: the end of the guest's serial console, and what comes after it. */

const MAX_TAIL_KIB = 1024;
const TAIL_KIB = 64;
const FOLLOW_MS = 2_000;

async function logs({ args, options, session, terminal, signal }: Call): Promise<undefined> {
  const tail_kib = whole('tail', options.text('tail')) ?? TAIL_KIB;
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
  return undefined;
}

/** At most so many characters, from the beginning of a line. */
function lastLines(text: string, characters: number): string {
  if (text.length <= characters) return text;
  return text.slice(text.indexOf('\n', text.length - characters) + 1);
}

export const LOGS: Command = {
  name: 'logs',
  args: ['NAME'],
  names_instances: true,
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
