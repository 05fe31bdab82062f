/** berth top: what the running VMs use now, renewed until Ctrl-C. */
import { setTimeout as pause } from 'node:timers/promises';
import { type Berth, BerthError, type Instance, type MetricsSample } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { bytes, cell, sizeCell } from '../format.ts';
import { collect } from '../reading.ts';
import type { Cell } from '../table.ts';

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
