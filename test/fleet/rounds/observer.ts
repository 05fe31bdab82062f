/**
 * Looks at the hosts from outside: which QEMU runs or is paused for which instance, by /proc, and what guests say, by the files of
 * their consoles. It asks no program of ours, and believes the host's record of a VM in one thing: that the guest was paused for
 * good and its memory saved. A guest that still says something after that has not been paused.
 */
import { closeSync, openSync, readdirSync, readFileSync, readSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { type Report, reportIn } from './guest-program.ts';
import type { History } from './history.ts';

const LOOK_MS = 200;
const STOPPED = /^[Tt]/;
const ENDED = /^[ZX]/;

export interface ObservedHost {
  readonly name: string;
  /** The data folder's path in its machine, which the arguments of QEMU name. */
  readonly data_dir: string;
  /** The same folder as seen from here. */
  readonly folder: string;
}

interface Qemu {
  readonly pid: number;
  readonly instance: string;
  readonly host: string;
  /** The host's record of the VM. */
  readonly record: string;
}

interface Console {
  at: number;
  rest: string;
  last: string;
  /** The epoch whose memory was saved before the last look. */
  saved: number | null;
}

export class Observer {
  readonly #hosts: readonly ObservedHost[];
  readonly #history: History;
  readonly #consoles = new Map<string, Console>();
  readonly #boots = new Set<string>();
  /** Of each instance, as it was told last. */
  readonly #told = new Map<string, string>();
  readonly #timer: NodeJS.Timeout;
  #failure: unknown;

  constructor(hosts: readonly ObservedHost[], history: History) {
    this.#hosts = hosts;
    this.#history = history;
    this.#timer = setInterval(() => this.#look(), LOOK_MS);
  }

  /** Instances with a process that runs on the host now. */
  on(host: string): string[] {
    return [
      ...new Set(
        findQemus(this.#hosts)
          .filter((each) => each.host === host && isRunning(each))
          .map(({ instance }) => instance),
      ),
    ];
  }

  /** The process of an instance on a host, by its pid here. */
  pidOn(host: string): number | undefined {
    return findQemus(this.#hosts).find((each) => each.host === host)?.pid;
  }

  /** @throws what a look has failed with */
  close(): void {
    clearInterval(this.#timer);
    this.#look();
    if (this.#failure !== undefined) throw this.#failure;
  }

  #look(): void {
    try {
      this.#lookAtProcesses();
      for (const host of this.#hosts) this.#readConsoles(host);
    } catch (error) {
      this.#failure ??= error;
    }
  }

  #lookAtProcesses(): void {
    const found = Map.groupBy(findQemus(this.#hosts), ({ instance }) => instance);
    for (const instance of new Set([...found.keys(), ...this.#told.keys()])) {
      const all = found.get(instance) ?? [];
      let running = all.filter(isRunning);
      // Again at once: one may have been paused between the looks at two.
      if (running.length > 1) running = running.filter(isRunning);
      const paused = all.filter((each) => !running.includes(each));
      const event = { instance, running: running.map(placeOf), paused: paused.map(placeOf) };
      const text = JSON.stringify(event);
      if (this.#told.get(instance) === text) continue;
      this.#told.set(instance, text);
      this.#history.add({ kind: 'processes', at_ms: Date.now(), ...event });
    }
  }

  #readConsoles({ name, folder }: ObservedHost): void {
    for (const instance of listOrNothing(join(folder, 'vms'))) {
      const path = join(folder, 'vms', instance, 'console.log');
      const key = `${name} ${instance}`;
      const known = this.#consoles.get(key) ?? { at: 0, rest: '', last: '', saved: null };
      this.#consoles.set(key, known);
      const record = recordIn(folder, instance);
      const before = readRecord(record);
      const lines = newLines(path, known);
      const now = readRecord(record);
      // Between two VMs the lines may be of either: those of guests that go on are read again.
      if (before === null || now?.epoch !== before.epoch) continue;
      const reports = lines.map(reportIn).filter((report) => report !== null);
      if (reports.length > 0 && known.saved === now.epoch && now.is_saved)
        this.#addError(instance, `that it goes on at ${name} after its memory was saved`);
      known.saved = now.is_saved ? now.epoch : null;
      for (const report of reports) this.#take(instance, before.epoch, report);
    }
  }

  #addError(instance: string, what: string): void {
    this.#history.add({ kind: 'guest error', at_ms: Date.now(), instance, what });
  }

  #take(instance: string, epoch: number, { kind, boot_id, number, text }: Report): void {
    const at_ms = Date.now();
    if (kind === 'R') this.#history.add({ kind: 'record', at_ms, instance, epoch, boot_id, number });
    else if (kind === 'E') this.#addError(instance, `${text} (boot ${boot_id}, record ${number})`);
    else if (!this.#boots.has(`${instance} ${boot_id}`)) {
      this.#boots.add(`${instance} ${boot_id}`);
      this.#history.add({ kind: 'boot', at_ms, instance, epoch, boot_id, newest: number, state: text });
    }
  }
}

const placeOf = ({ host, pid }: Qemu) => `${host}:${pid}`;
const recordIn = (folder: string, instance: string) => join(folder, 'vms', instance, 'record.json');

function isRunning({ pid, record }: Qemu): boolean {
  const state = stateOf(pid);
  return !STOPPED.test(state) && !ENDED.test(state) && !readRecord(record)?.is_saved;
}

function findQemus(hosts: readonly ObservedHost[]): Qemu[] {
  return readdirSync('/proc').flatMap((name) => {
    if (!/^[1-9][0-9]*$/.test(name)) return [];
    const command = readOrNothing(`/proc/${name}/cmdline`);
    if (!/^[^\0]*qemu-system-/.test(command)) return [];
    const [, instance] = /guest=(inst_[0-9a-z]+)/.exec(command) ?? [];
    const host = hosts.find(({ data_dir }) => command.includes(`${data_dir}/vms/`));
    const pid = Number(name);
    return instance !== undefined && host && !ENDED.test(stateOf(pid))
      ? [{ pid, instance, host: host.name, record: recordIn(host.folder, instance) }]
      : [];
  });
}

/** Of /proc/PID/stat; X: it has ended. */
function stateOf(pid: number): string {
  const stat = readOrNothing(`/proc/${pid}/stat`);
  return stat === '' ? 'X' : stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3);
}

/** What was added to the file since, in whole lines. A file that has become shorter is read again, after the line that was last. */
function newLines(path: string, known: Console): string[] {
  const size = statSync(path, { throwIfNoEntry: false })?.size ?? 0;
  const is_shorter = size < known.at;
  if (is_shorter) [known.at, known.rest] = [0, ''];
  if (size === known.at) return [];
  const bytes = Buffer.alloc(size - known.at);
  const file = openSync(path, 'r');
  const read = readSync(file, bytes, 0, bytes.length, known.at);
  closeSync(file);
  known.at += read;
  const lines = `${known.rest}${bytes.toString('latin1', 0, read)}`.split('\n');
  known.rest = lines.pop() ?? '';
  const fresh = is_shorter ? lines.slice(lines.lastIndexOf(known.last) + 1) : lines;
  known.last = fresh.findLast((line) => line.startsWith('@@ R')) ?? known.last;
  return fresh;
}

interface VmRecord {
  readonly epoch: number;
  /** The guest is paused for good, because its memory is saved. */
  readonly is_saved: boolean;
}

function readRecord(path: string): VmRecord | null {
  try {
    const { epoch, memory } = JSON.parse(readFileSync(path, 'utf8')) as { epoch: number; memory?: unknown };
    return { epoch, is_saved: (memory ?? null) !== null };
  } catch {
    return null;
  }
}

function readOrNothing(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}

function listOrNothing(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
