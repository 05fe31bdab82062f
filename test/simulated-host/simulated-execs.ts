/**
 * Runs the execs of a simulated guest, and streams their output to readers in the frames of `protocol/exec-types.ts`.
 * Execs and output are in memory: as many ended execs, and as much output of each, as a real host keeps. An exec never
 * waits for a slow reader.
 */
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import {
  ENDED_KEPT,
  type ExecControlResult,
  type ExecEnd,
  FRAME,
  OUTPUT_KEPT_BYTES,
  offsetBytes,
  type ReportedExec,
  StreamFrames,
  streamFrame,
} from '../../src/protocol/exec-types.ts';
import type { HostCall } from '../../src/protocol/host-calls.ts';
import { rfc3339 } from '../../src/shared/clock.ts';
import { Signal } from '../../src/shared/concurrency.ts';
import type { ExecId, InstanceId } from '../../src/shared/ids.ts';
import { Input, runProgram, type ShellGuest } from './shell.ts';
import { Terminal } from './terminal.ts';

type CallOf<K extends HostCall['kind']> = Extract<HostCall, { kind: K }>;

/** What ended it. */
interface Killed {
  readonly signal: number | null;
  readonly timed_out?: boolean;
}

const SIGKILL = 9;

class SimulatedExec {
  readonly id: ExecId;
  readonly changed = new Signal();
  readonly #input = new Input();
  readonly #interrupts = new Signal();
  readonly #killed = new AbortController();
  readonly #terminal: Terminal | null;
  readonly #takes_input: boolean;
  #pieces: { readonly offset: number; readonly stream: number; readonly data: Buffer }[] = [];
  #end: ExecEnd | null = null;
  #output_bytes = 0;

  constructor(guest: ShellGuest, call: CallOf<'exec_start'>) {
    this.id = call.exec_id;
    this.#takes_input = call.stdin || call.tty !== null;
    const show = (data: Buffer) => this.#append(FRAME.stdout, data);
    this.#terminal = call.tty && new Terminal(this.#input, show, this.#interrupts.notify);
    if (!this.#takes_input) this.#input.end();
    void this.#run(guest, call);
  }

  get end(): ExecEnd | null {
    return this.#end;
  }
  get output_bytes(): number {
    return this.#output_bytes;
  }

  control(action: CallOf<'exec_control'>['action']): ExecControlResult['outcome'] {
    if (this.#end) return 'ended';
    if (action.kind === 'resize') return this.#terminal ? 'done' : 'no_terminal';
    if (action.kind === 'signal') {
      this.kill({ signal: action.signal });
      return 'done';
    }
    if (this.#input.ended) return 'no_input';
    this.type(Buffer.from(action.data, 'base64'));
    if (action.eof) this.#input.end();
    return 'done';
  }

  type(data: Buffer): void {
    if (this.#terminal) this.#terminal.type(data);
    else this.#input.push(data);
  }

  kill(how: Killed): void {
    this.#killed.abort(how);
  }

  /** Its boot has ended. */
  lose(): void {
    this.#finish({ state: 'lost', exit_code: null, signal: null, lost_with: 'boot' });
    this.kill({ signal: SIGKILL });
  }

  report(instance_id: InstanceId): ReportedExec {
    return { instance_id, exec_id: this.id, output_bytes: this.#output_bytes, end: this.#end };
  }

  async stream(line: Duplex, instance_id: InstanceId, call: CallOf<'exec_stream'>): Promise<void> {
    const gone = new AbortController();
    line.on('error', () => line.destroy());
    line.on('close', () => gone.abort());
    line.on('end', () => line.destroy());
    this.#take(line, call.input);
    const write = async (frame: Buffer): Promise<void> => {
      if (!line.write(frame)) await once(line, 'drain', { signal: gone.signal });
    };
    let offset = Math.max(call.offset, this.#pieces[0]?.offset ?? this.#output_bytes);
    const until = call.follow ? Number.POSITIVE_INFINITY : this.#output_bytes;
    try {
      await write(streamFrame(FRAME.attached, offsetBytes(offset)));
      while (!gone.signal.aborted) {
        const since = this.changed.count;
        const ended = this.#end !== null;
        const pieces = this.#pieces.filter(
          (each) => each.offset < until && each.offset + each.data.length > offset,
        );
        for (const piece of pieces) {
          const from = Math.max(offset, piece.offset);
          await write(streamFrame(piece.stream, offsetBytes(from), piece.data.subarray(from - piece.offset)));
          offset = piece.offset + piece.data.length;
        }
        if (pieces.length > 0) continue;
        if (ended || !call.follow) break;
        await this.changed.wait({ since, signal: gone.signal });
      }
      const report = Buffer.from(JSON.stringify(this.report(instance_id)));
      if (this.#end) await write(streamFrame(FRAME.exit, report));
      else if (!call.follow) await write(streamFrame(FRAME.end));
      line.end();
    } catch {
      line.destroy();
    }
  }

  #take(line: Duplex, input: boolean): void {
    const frames = new StreamFrames();
    line.on('data', (chunk: Buffer) => {
      for (const { type, payload } of frames.push(chunk)) {
        if (!input || this.#end) continue;
        if (type === FRAME.input) this.type(payload);
        else if (type === FRAME.eof) this.#input.end();
        else if (type === FRAME.signal && payload.length === 1) this.kill({ signal: payload.readUInt8() });
      }
    });
  }

  async #run(guest: ShellGuest, { command, environment, timeout_ms }: CallOf<'exec_start'>): Promise<void> {
    const { signal } = this.#killed;
    const timer =
      timeout_ms === null
        ? undefined
        : setTimeout(() => this.kill({ signal: SIGKILL, timed_out: true }), timeout_ms);
    const write = (stream: 1 | 2, data: Buffer | string): void => {
      if (this.#terminal) this.#terminal.print(data);
      else this.#append(stream === 2 ? FRAME.stderr : FRAME.stdout, Buffer.from(data));
    };
    const interrupts = this.#terminal && this.#interrupts;
    const process = { guest, environment, input: this.#input, write, signal, interrupts };
    const killed = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason));
    });
    try {
      const exit_code = await Promise.race([runProgram(process, command), killed]);
      this.#finish({ state: 'exited', exit_code, signal: null });
    } catch (error) {
      if (!signal.aborted) throw error;
      const { signal: by, timed_out = false } = signal.reason as Killed;
      this.#finish({ state: 'exited', exit_code: null, signal: by, timed_out });
    } finally {
      clearTimeout(timer);
    }
  }

  #append(stream: number, data: Buffer): void {
    if (this.#end || data.length === 0) return;
    this.#pieces.push({ offset: this.#output_bytes, stream, data });
    this.#output_bytes += data.length;
    while (this.#output_bytes - (this.#pieces[1]?.offset ?? this.#output_bytes) > OUTPUT_KEPT_BYTES)
      this.#pieces.shift();
    this.changed.notify();
  }

  #finish(end: Omit<ExecEnd, 'timed_out' | 'ended_at'> & { readonly timed_out?: boolean }): void {
    if (this.#end) return;
    this.#end = { timed_out: false, ...end, ended_at: rfc3339(new Date()) };
    this.changed.notify();
  }
}

/** Of one instance, over all its boots. */
export class SimulatedExecs {
  readonly #execs = new Map<ExecId, SimulatedExec>();
  readonly #reported = new Map<ExecId, string>();
  readonly #instance_id: InstanceId;
  readonly #changed: () => void;

  /** `changed`: something is to be reported. */
  constructor(instance_id: InstanceId, changed: () => void) {
    this.#instance_id = instance_id;
    this.#changed = changed;
  }

  /** However often it is asked for, it is started once. */
  start(guest: ShellGuest, call: CallOf<'exec_start'>): void {
    if (this.#execs.has(call.exec_id)) return;
    const exec = new SimulatedExec(guest, call);
    this.#execs.set(exec.id, exec);
    exec.changed.subscribe(this.#changed);
    this.#changed();
    const ended = [...this.#execs.values()].filter(({ end }) => end !== null);
    for (const { id } of ended.slice(0, Math.max(0, ended.length - ENDED_KEPT))) {
      this.#execs.delete(id);
      this.#reported.delete(id);
    }
  }

  /** Undefined: this simulator never had it, or not any more. */
  find(id: ExecId): SimulatedExec | undefined {
    return this.#execs.get(id);
  }

  loseAll(): void {
    for (const exec of this.#execs.values()) exec.lose();
  }

  /** What was not reported yet. */
  unreported(): ReportedExec[] {
    return [...this.#execs.values()]
      .map((exec) => exec.report(this.#instance_id))
      .filter((report) => this.#reported.get(report.exec_id) !== JSON.stringify(report));
  }

  noteReported(reports: readonly ReportedExec[]): void {
    for (const report of reports) this.#reported.set(report.exec_id, JSON.stringify(report));
  }
}

/** Runs a command while its caller waits. */
export async function runCommand(
  guest: ShellGuest & { readonly ended: AbortSignal },
  { command, stdin, timeout_ms }: CallOf<'exec'>,
): Promise<{ exit_code: number | null; stdout: string; stderr: string; truncated: boolean }> {
  const input = new Input();
  input.push(Buffer.from(stdin));
  input.end();
  const output = { 1: '', 2: '' };
  const write = (stream: 1 | 2, data: Buffer | string): void => {
    output[stream] += data.toString();
  };
  const timeout = AbortSignal.timeout(timeout_ms);
  const process = { guest, environment: [], input, write, interrupts: null };
  const signal = AbortSignal.any([timeout, guest.ended]);
  const exit_code = await runProgram({ ...process, signal }, command).catch((error: unknown) => {
    if (timeout.aborted) return null;
    throw error;
  });
  return { exit_code, stdout: output[1], stderr: output[2], truncated: false };
}
