/**
 * Owns the execs and file tasks of one instance on this host. It launches the supervisor (exec-supervisor.pl) in the
 * guest, starts execs through it, receives their output and ends, and deletes what is too old. The supervisor outlives
 * this process, and so do records and output in `vms/<instance id>/execs`: the next agent continues from both.
 *
 * Invariants:
 * - The end of an exec is on disk before the supervisor is told to forget the exec.
 * - An exec becomes `lost` only by proof. With its boot: the machine was reset, or a supervisor of another boot
 *   answers. With its supervisor: another one of the same boot answers, or the same one lists the exec no longer.
 * - Root in the guest can replace the supervisor, so its frames are not trusted. In a boot it can add at most
 *   UNASKED_MAX execs that this host did not start. An offset too large for an exec's report ends the channel.
 */
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  ENDED_KEPT,
  FILE_CALLS_MAX,
  type LostWith,
  OUTPUT_BYTES_MAX,
  OUTPUTS_KEPT_BYTES,
} from '../../protocol/exec-types.ts';
import type { HostCall } from '../../protocol/host-calls.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { type ExecId, isId, newId } from '../../shared/ids.ts';
import { pause } from '../../shared/retry.ts';
import { guestExec } from '../guest/guest-commands.ts';
import { vmSockets } from '../qemu/qemu-command.ts';
import type { Machine } from '../vm/machine.ts';
import { HostExec, type Send } from './exec.ts';
import {
  BrokenFrameError,
  ExecChannel,
  FROM_GUEST,
  type GuestFrame,
  isSameBoot,
  TO_GUEST,
} from './exec-channel.ts';
import { readExecRecords, removeExecRecord } from './exec-output.ts';
import { GuestTask } from './guest-task.ts';

export type StartCall = Extract<HostCall, { kind: 'exec_start' }>;

/** The words of a start, as the supervisor reads them. */
function startWords(call: StartCall): Buffer {
  const { user, cwd, tty, stdin, timeout_ms, command, environment } = call;
  const words = [
    ...[user, cwd, String(tty?.columns ?? 0), String(tty?.rows ?? 0), stdin ? '1' : ''],
    ...[String(timeout_ms ?? 0), String(command.length), ...command, ...environment],
  ];
  return Buffer.from(words.join('\0'));
}

/** None contains NUL. */
function joinWords(words: readonly Uint8Array[]): Buffer {
  return Buffer.concat(words.flatMap((word, index) => (index === 0 ? [word] : [Buffer.of(0), word])));
}

const SUPERVISOR = ['file-tasks.pl', 'exec-supervisor.pl']
  .map((name) => readFileSync(join(import.meta.dirname, name), 'utf8'))
  .join('');
const LAUNCH = readFileSync(join(import.meta.dirname, 'launch-supervisor.sh'), 'utf8');
/** How long a supervisor may take to answer: a guest that is busy, or was just started. */
const ANSWER_MS = 15_000;
/** A supervisor that has been silent for this long may have ended: another one is launched. */
const SILENT_MS = 15_000;
const RECONNECT_MS = 1_000;
/** Execs of one boot that are taken from its supervisor without having been asked for here: moved with their VM, or asked for by the last agent. */
const UNASKED_MAX = 64;
/** Starts without an answer that are remembered. */
const ASKED_MAX = 64;

/** What an exec needs of its machine. */
export type ExecMachine = Pick<Machine, 'view' | 'resets' | 'agent'> & {
  readonly folder: Pick<Machine['folder'], 'runtime'>;
};

export type ExecRefusal = { readonly field: string; readonly issue: string };

export class ExecsUnavailableError extends Error {
  override name = 'ExecsUnavailableError';
}

export class VmExecs {
  readonly #folder: string;
  readonly #changed: () => void;
  readonly #execs = new Map<ExecId, HostExec>();
  /** By the key of the exec. */
  readonly #starts = new Map<string, PromiseWithResolvers<ExecRefusal | null>>();
  /** By their keys. Each ends with its channel. */
  readonly #tasks = new Map<string, { readonly task: GuestTask; readonly channel: ExecChannel | null }>();
  #machine: ExecMachine | null = null;
  #resets = 0;
  #channel: ExecChannel | null = null;
  #channel_closed: Promise<void> = Promise.resolve();
  #closed = false;
  #opened_at_ms = Number.NEGATIVE_INFINITY;
  #launched_at_ms = Number.NEGATIVE_INFINITY;
  /** Frames of an exec that the supervisor has listed since the last hello. */
  #listed = new Set<string>();
  #answered: ((session: string) => void)[] = [];
  /** Starts that were not answered yet, maybe too late for their callers. */
  readonly #asked = new Set<ExecId>();
  /** Of this boot, as far as this process has seen it. */
  #unasked = 0;

  /** `changed`: something is to be reported. */
  constructor(vm_folder: string, changed: () => void) {
    this.#folder = join(vm_folder, 'execs');
    this.#changed = changed;
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    for (const record of readExecRecords(this.#folder))
      this.#execs.set(record.id, new HostExec(this.#folder, record));
  }

  get all(): IterableIterator<HostExec> {
    return this.#execs.values();
  }
  find(id: ExecId): HostExec | undefined {
    return this.#execs.get(id);
  }
  /** A supervisor answers. */
  get connected(): boolean {
    return this.#channel?.closed === false && this.#channel.session !== null;
  }
  /** To the supervisor; dropped while there is none, because a hello sends it again. */
  sendTo({ key }: HostExec): Send {
    return (type, payload) => this.#channel?.send(type, key, payload);
  }

  /** Called about once a second, with the machine that runs now. */
  look(machine: ExecMachine | null): void {
    // What the last one sent before its end is still read; its end closes the channel.
    if (machine === null) return;
    if (this.#machine && (machine !== this.#machine || machine.resets !== this.#resets)) {
      if (machine === this.#machine) this.#lose(() => 'boot');
      this.#channel?.close();
      this.#channel = null;
      this.#unasked = 0;
    }
    this.#machine = machine;
    this.#resets = machine.resets;
    if (machine.view !== 'up') return;
    this.#connect();
    const silent = (this.#channel?.silent_ms ?? 0) > SILENT_MS;
    const waits = [...this.all].some(({ end }) => end === null);
    if (silent && waits && performance.now() - this.#launched_at_ms > SILENT_MS)
      void this.#launch(machine).catch(() => undefined);
  }

  /** Starts it, unless it was started before. Null: it runs. @throws ExecsUnavailableError, the guest agent's errors */
  async start(machine: ExecMachine, call: StartCall): Promise<ExecRefusal | null> {
    if (this.#execs.has(call.exec_id)) return null;
    await this.#ready(machine);
    this.#asked.add(call.exec_id);
    for (const oldest of this.#asked) {
      if (this.#asked.size <= ASKED_MAX) break;
      this.#asked.delete(oldest);
    }
    return this.#ask(machine, TO_GUEST.start, keyOf(call.exec_id), startWords(call));
  }

  /** Starts a task of the guest's supervisor. @throws ExecsUnavailableError, the guest agent's errors */
  async startTask(machine: ExecMachine, words: readonly Uint8Array[]): Promise<GuestTask | ExecRefusal> {
    if (this.#tasks.size >= FILE_CALLS_MAX)
      return { field: 'busy', issue: `${FILE_CALLS_MAX} requests for files are served at once` };
    await this.#ready(machine);
    const key = keyOf(newId('exec'));
    const channel = this.#channel;
    const task = new GuestTask((type, payload) => {
      if (this.#tasks.has(key)) channel?.send(type, key, payload);
    });
    this.#tasks.set(key, { task, channel });
    const refusal = await this.#ask(machine, TO_GUEST.task, key, joinWords(words)).catch((error: unknown) => {
      task.destroy();
      throw error;
    });
    if (refusal === null) return task;
    this.#tasks.delete(key);
    return refusal;
  }

  /** A supervisor answers. */
  async #ready(machine: ExecMachine): Promise<void> {
    this.look(machine);
    this.#connect();
    if (this.#channel?.session === null) await this.#launch(machine);
    await this.#session();
  }

  /** Its answer to a start. */
  async #ask(machine: ExecMachine, type: string, key: string, words: Buffer): Promise<ExecRefusal | null> {
    const known = this.#starts.get(key);
    const asked = known ?? Promise.withResolvers<ExecRefusal | null>();
    if (!known) {
      this.#starts.set(key, asked);
      this.#channel?.send(type, key, words);
    }
    const late = new AbortController();
    const timeout = pause(ANSWER_MS, late.signal).then(async (passed) => {
      // It may have ended: the next start finds another one.
      if (passed) await this.#launch(machine);
      if (passed) throw new ExecsUnavailableError('the supervisor does not answer');
      return null;
    });
    try {
      return await Promise.race([asked.promise, timeout]);
    } finally {
      late.abort();
      this.#starts.delete(key);
    }
  }

  /** After the machine's end: reads what it sent before, for at most `timeout_ms`. */
  async readRest(timeout_ms: number): Promise<void> {
    const waits = [...this.all].some(({ end }) => end === null);
    const late = new AbortController();
    if (waits && this.#channel?.closed === false)
      await Promise.race([this.#channel_closed, pause(timeout_ms, late.signal)]);
    late.abort();
  }

  /** Disconnects. What runs goes on, and waits for the next agent. */
  close(): void {
    this.#closed = true;
    this.#channel?.close();
  }

  /** Part of the time since the last call: without that in which streams could not come back. */
  passTime(elapsed_ms: number): void {
    if (!this.connected) return;
    for (const exec of this.all) exec.passTime(this.sendTo(exec), elapsed_ms);
  }

  /** Removes what is too old or too much: the output of the oldest ended exec goes first. */
  tidy(): void {
    const ended = [...this.all].filter(({ end, record }) => end !== null && record.reported);
    for (const exec of ended.slice(0, Math.max(0, ended.length - ENDED_KEPT))) {
      exec.output.drop();
      removeExecRecord(this.#folder, exec.id);
      this.#execs.delete(exec.id);
    }
    let kept = [...this.all].reduce((bytes, { output }) => bytes + output.kept_bytes, 0);
    for (const exec of [...this.all].filter(({ end }) => end !== null)) {
      if (kept <= OUTPUTS_KEPT_BYTES) return;
      if (exec.output.kept_bytes === 0) continue;
      kept -= exec.output.kept_bytes;
      exec.output.drop();
    }
    while (kept > OUTPUTS_KEPT_BYTES) {
      const [most] = [...this.all].sort((one, other) => other.output.kept_bytes - one.output.kept_bytes);
      const before = most?.output.kept_bytes ?? 0;
      most?.output.dropFirst();
      if (before === 0) return;
      kept -= before - (most?.output.kept_bytes ?? 0);
    }
  }

  #add(id: ExecId, session: string | null): HostExec {
    const known = { session, end: null, output_bytes: 0, streamed_input: false, reported: false };
    const exec = new HostExec(this.#folder, { id, ...known });
    exec.update({});
    this.#execs.set(id, exec);
    this.#asked.delete(id);
    this.#changed();
    return exec;
  }

  #connect(): void {
    const machine = this.#machine;
    if (this.#closed || !machine || (this.#channel && !this.#channel.closed)) return;
    if (performance.now() - this.#opened_at_ms < RECONNECT_MS) return;
    this.#opened_at_ms = performance.now();
    const { execs } = vmSockets(machine.folder.runtime);
    const { promise: closed, resolve: onClosed } = Promise.withResolvers<void>();
    const channel = new ExecChannel(
      execs,
      (frame) => this.#channel === channel && this.#receive(frame),
      () => {
        this.#endTasks(channel);
        onClosed();
      },
    );
    this.#channel_closed = closed;
    this.#channel = channel;
  }

  /** Where one runs already, this does nothing in the guest. */
  async #launch(machine: ExecMachine): Promise<void> {
    this.#launched_at_ms = performance.now();
    // A new hello: the one before may have gone to a supervisor that has ended.
    if (this.#channel?.session !== null) {
      this.#channel?.close();
      this.#channel = null;
      this.#opened_at_ms = Number.NEGATIVE_INFINITY;
      this.#connect();
    }
    await guestExec(machine.agent, { path: '/bin/sh', args: ['-c', LAUNCH], input: SUPERVISOR });
  }

  #session(): Promise<string> {
    const known = this.#channel?.session;
    if (known) return Promise.resolve(known);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new ExecsUnavailableError('the supervisor does not answer')),
        ANSWER_MS,
      );
      this.#answered.push((session) => {
        clearTimeout(timer);
        resolve(session);
      });
    });
  }

  #receive({ type, exec: key, payload }: GuestFrame): void {
    const session = this.#channel?.session ?? null;
    if (session === null) return;
    if (type === FROM_GUEST.hello) {
      this.#listed = new Set();
      // A supervisor has its execs until it ends: those of another one are over.
      this.#lose(({ record }) => {
        if (record.session === null || record.session === session) return null;
        return isSameBoot(record.session, session) ? 'supervisor' : 'boot';
      });
      return;
    }
    if (type === FROM_GUEST.all_listed) {
      this.#lose(({ record, key }) =>
        record.session === session && !this.#listed.has(key) ? 'supervisor' : null,
      );
      for (const each of this.#answered.splice(0)) each(session);
      return;
    }
    const id = `exec_${key}` as ExecId;
    if (!isId('exec', id)) return;
    const task = this.#tasks.get(key)?.task;
    if (type === FROM_GUEST.started || type === FROM_GUEST.refused) {
      const [field = '', issue = ''] = payload.toString('utf8').split('\0');
      if (type === FROM_GUEST.started && this.#asked.has(id) && !this.#execs.has(id)) this.#add(id, session);
      this.#asked.delete(id);
      this.#starts.get(key)?.resolve(type === FROM_GUEST.started ? null : { field, issue });
      return;
    }
    if (task) {
      this.#receiveOfTask(task, key, type, payload);
      return;
    }
    if (type === FROM_GUEST.listed && payload.length >= 18) {
      this.#resume(id, session, payload);
      if (this.#execs.has(id)) this.#listed.add(key);
    }
    const exec = this.#execs.get(id);
    if (!exec) return;
    if (exec.end !== null) {
      // It was written down before; the agent ended before the guest knew.
      if (type === FROM_GUEST.exited) this.#channel?.send(TO_GUEST.forget, key);
      return;
    }
    if (type === FROM_GUEST.output && payload.length > 9) {
      const data = payload.subarray(9);
      exec.receive(offsetAt(payload, 0, data.length), payload.readUInt8(8) === 2 ? 2 : 1, data);
      exec.acknowledge(this.sendTo(exec));
    } else if (type === FROM_GUEST.taken && payload.length >= 8) exec.noteTaken(offsetAt(payload, 0));
    else if (type === FROM_GUEST.exited && payload.length >= 19) this.#finish(exec, payload);
  }

  #receiveOfTask(task: GuestTask, key: string, type: string, payload: Buffer): void {
    if (type === FROM_GUEST.output && payload.length > 9) {
      if (!task.receive(offsetAt(payload, 0), payload.subarray(9))) this.#channel?.close();
    } else if (type === FROM_GUEST.taken && payload.length >= 8) task.noteTaken(offsetAt(payload, 0));
    else if (type === FROM_GUEST.exited) {
      this.#channel?.send(TO_GUEST.forget, key);
      this.#tasks.delete(key);
      task.finish();
    }
  }

  /** With their channel: the supervisor ends them too. */
  #endTasks(of: ExecChannel): void {
    for (const [key, { task, channel }] of this.#tasks) {
      if (channel !== of) continue;
      this.#tasks.delete(key);
      task.destroy();
    }
  }

  #resume(id: ExecId, session: string, payload: Buffer): void {
    // One that was started at another host, or whose start this agent's predecessor did not see answered.
    const exec = this.#execs.get(id) ?? (this.#mayAdd(id) ? this.#add(id, session) : null);
    if (exec?.end === null)
      exec.resume(this.sendTo(exec), session, {
        base: offsetAt(payload, 0),
        received: offsetAt(payload, 8),
        input_ended: payload.readUInt8(16) === 1,
        waits: payload.readUInt8(17) === 1,
      });
  }

  /** Whether one that the supervisor lists becomes known. */
  #mayAdd(id: ExecId): boolean {
    if (this.#asked.has(id)) return true;
    this.#unasked += 1;
    return this.#unasked <= UNASKED_MAX;
  }

  #finish(exec: HostExec, payload: Buffer): void {
    const [by_signal = 0, code = 0, timed_out = 0] = payload;
    const ago_ms = Math.min(offsetAt(payload, 11), Date.now());
    const ended_at = rfc3339(new Date(Date.now() - ago_ms));
    const killed = by_signal === 1 && code >= 1 && code <= 127;
    exec.finish({
      state: 'exited',
      exit_code: killed ? null : code,
      signal: killed ? code : null,
      timed_out: timed_out === 1,
      ended_at,
    });
    this.#channel?.send(TO_GUEST.forget, exec.key);
    this.tidy();
    this.#changed();
  }

  /** `lostWith`: null for an exec that may still run. */
  #lose(lostWith: (exec: HostExec) => LostWith | null): void {
    const ended_at = rfc3339(new Date());
    const lost = { state: 'lost', exit_code: null, signal: null, timed_out: false, ended_at } as const;
    for (const exec of this.all) {
      const lost_with = exec.end === null ? lostWith(exec) : null;
      if (lost_with) exec.finish({ ...lost, lost_with });
    }
    this.#changed();
  }
}

/** As frames name it. */
function keyOf(id: ExecId): string {
  return id.slice('exec_'.length);
}

/** Of a byte that `length` more follow. @throws BrokenFrameError, which ends the channel, when no exec says so much */
function offsetAt(payload: Buffer, at: number, length = 0): number {
  const offset = Number(payload.readBigUInt64BE(at));
  if (offset + length > OUTPUT_BYTES_MAX) throw new BrokenFrameError(`an offset of ${offset}`);
  return offset;
}
