/**
 * Owns the execs of all instances on this host. It keeps a `VmExecs` for each instance, reports the state and end of
 * execs until the control plane has them, and streams an exec's output to its readers.
 */

import { once } from 'node:events';
import { existsSync } from 'node:fs';
import type { Duplex } from 'node:stream';
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import {
  FRAME,
  offsetBytes,
  type ReportedExec,
  type StreamFrame,
  StreamFrames,
  streamFrame,
} from '../../protocol/exec-types.ts';
import { present } from '../../shared/assert.ts';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { HostContext } from '../host-context.ts';
import { listVmFolders, vmFolder } from '../vm/record.ts';
import type { HostExec, Send } from './exec.ts';
import { TO_GUEST } from './exec-channel.ts';
import { type ExecMachine, VmExecs } from './vm-execs.ts';

const LOOK_MS = 1_000;
/** The control plane has answered since then: more than its heartbeats take. */
const REACHABLE_MS = 8_000;
/** Of a machine that has ended: its last frames are in this host's memory. */
const READ_REST_MS = 2_000;

interface Machines {
  readonly instance_id: InstanceId;
  readonly machine: ExecMachine | null;
}

type ExecsContext = Pick<HostContext, 'client' | 'log'> & {
  readonly paths: Pick<HostContext['paths'], 'vms'>;
};

export class HostExecs {
  readonly #context: ExecsContext;
  readonly #machines: () => readonly Machines[];
  readonly #vms = new Map<InstanceId, VmExecs>();
  readonly #changed = new Signal();
  readonly #sender: BatchSender<typeof BATCHES.execs.item>;

  constructor(context: ExecsContext, machines: () => readonly Machines[]) {
    this.#context = context;
    this.#machines = machines;
    this.#sender = new BatchSender(BATCHES.execs, context.log);
  }

  /** Null: this host has, or had, no VM of the instance. */
  of(instance_id: InstanceId): VmExecs | null {
    const known = this.#vms.get(instance_id);
    if (known) return known;
    const { folder } = vmFolder(this.#context.paths.vms, instance_id);
    if (!existsSync(folder)) return null;
    const execs = new VmExecs(folder, this.#changed.notify);
    this.#vms.set(instance_id, execs);
    return execs;
  }

  /** Until `signal` aborts. Then execs run on, and wait for the next agent. */
  async run(signal: AbortSignal): Promise<void> {
    // Ends that an earlier agent could not report.
    for (const instance_id of await listVmFolders(this.#context.paths.vms)) this.#look(instance_id, null);
    await Promise.all([this.#looks(signal), this.#reports(signal)]);
    for (const execs of this.#vms.values()) execs.close();
  }

  async #looks(signal: AbortSignal): Promise<void> {
    for (let at_ms = performance.now(); ; ) {
      const now_ms = performance.now();
      // Neither while callers cannot reach their streams, nor while this process stood still.
      const passed_ms = this.#context.client.silent_ms < REACHABLE_MS ? now_ms - at_ms : 0;
      for (const execs of this.#vms.values()) execs.passTime(Math.min(passed_ms, 2 * LOOK_MS));
      at_ms = now_ms;
      for (const { instance_id, machine } of this.#machines()) this.#look(instance_id, machine);
      for (const [instance_id, execs] of this.#vms) {
        execs.tidy();
        if (existsSync(vmFolder(this.#context.paths.vms, instance_id).folder)) continue;
        execs.close();
        this.#vms.delete(instance_id);
      }
      if ([...this.#vms.values()].some((execs) => unreported(execs).length > 0)) this.#changed.notify();
      if (!(await pause(LOOK_MS, signal))) return;
    }
  }

  /** Reports the ends of the instance's execs that are known here. Call it before the end of their boot is reported, which makes the others `lost`. */
  async reportEnds(instance_id: InstanceId, signal: AbortSignal): Promise<void> {
    const execs = this.#vms.get(instance_id);
    const runs = this.#machines().some((each) => each.instance_id === instance_id && each.machine !== null);
    if (!runs) await execs?.readRest(READ_REST_MS);
    const ended = execs ? unreported(execs).filter(({ end }) => end !== null) : [];
    if (ended.length === 0) return;
    const found = ended.map((exec) => ({ instance_id, exec }));
    await this.#report(found, signal).catch((error: unknown) => {
      // The report of the VM must not wait for a fault of this one.
      if (error instanceof ControlPlaneUnavailable) throw error;
      this.#context.log.error({ err: error, instance_id }, 'the ends of execs could not be reported');
    });
  }

  #look(instance_id: InstanceId, machine: ExecMachine | null): void {
    try {
      this.of(instance_id)?.look(machine);
    } catch (error) {
      // A full disk, for example. The others still get theirs.
      this.#context.log.warn({ instance_id, reason: messageOf(error) }, 'execs could not be looked after');
    }
  }

  async #report(found: readonly Found[], signal: AbortSignal): Promise<void> {
    const execs = new Map(found.map(({ instance_id, exec }) => [reportOf(instance_id, exec), exec]));
    await this.#sender.send([...execs.keys()], {
      post: (some) => this.#context.client.reportExecs({ execs: some }, signal),
      settled: (some) => {
        for (const report of some) {
          const exec = present(execs.get(report), 'exec of a report');
          exec.reported_bytes = report.output_bytes;
          exec.reported_waiting = report.waits === true;
          if (report.end !== null) exec.update({ reported: true });
        }
      },
    });
  }

  async #reports(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      const since = this.#changed.count;
      // All of them, before any that changes meanwhile: one VM's execs must not hold up the others'.
      const found = [...this.#vms].flatMap(([instance_id, execs]) =>
        unreported(execs).map((exec) => ({ instance_id, exec })),
      );
      if (found.length === 0) {
        await this.#changed.wait({ since, signal });
        continue;
      }
      try {
        await this.#report(found, signal);
        failures = 0;
      } catch (error) {
        if (failures === 3) this.#context.log.warn({ reason: messageOf(error) }, 'reports of execs wait');
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
  }
}

interface Found {
  readonly instance_id: InstanceId;
  readonly exec: HostExec;
}

function unreported(execs: VmExecs): HostExec[] {
  return [...execs.all].filter((exec) =>
    exec.end === null
      ? exec.output.end !== exec.reported_bytes || exec.waits_for_nobody !== exec.reported_waiting
      : !exec.record.reported,
  );
}

function reportOf(instance_id: InstanceId, exec: HostExec): ReportedExec {
  const waits = exec.end === null && exec.waits_for_nobody;
  return { instance_id, exec_id: exec.id, output_bytes: exec.output.end, end: exec.end, waits };
}

export interface Reading {
  readonly instance_id: InstanceId;
  readonly exec: HostExec;
  /** To the exec in the guest. */
  readonly send: Send;
  readonly offset: number;
  readonly follow: boolean;
  readonly attached: boolean;
  readonly input: boolean;
}

/**
 * A stream to a reader of an exec's output, which may also send input. It carries the frames of `protocol/exec-types.ts`. An
 * attached reader holds up the exec when it is slow, as a terminal does, and for a while after it was lost.
 *
 * Until the end of the output, or of the stream; without `follow` until what was there at the beginning.
 */
export async function serveReader(stream: Duplex, reading: Reading): Promise<void> {
  const { instance_id, exec, send, follow, attached } = reading;
  const gone = new AbortController();
  const reader = { offset: Math.max(reading.offset, exec.output.start) };
  const until = follow ? Number.POSITIVE_INFINITY : exec.output.end;
  const leave = exec.addReader();
  const endWait = attached ? exec.waitFor(reader, send) : () => undefined;
  stream.on('error', () => stream.destroy());
  stream.on('close', () => gone.abort());
  stream.on('end', () => stream.destroy());
  const input = reading.input ? exec.addInputStream() : null;
  let left = false;
  takeInput(stream, reading, gone.signal, (type) => {
    if (type === FRAME.input) input?.noteInput();
    if (type === FRAME.leave) left = true;
  });
  const write = async (frame: Buffer): Promise<void> => {
    if (!stream.write(frame)) await once(stream, 'drain', { signal: gone.signal });
  };
  try {
    await write(streamFrame(FRAME.attached, offsetBytes(reader.offset)));
    while (!gone.signal.aborted) {
      const since = exec.changed.count;
      const ended = exec.end !== null;
      const pieces = reader.offset < until ? exec.output.read(reader.offset) : [];
      for (const { offset, stream: number, data } of pieces) {
        await write(streamFrame(number === 2 ? FRAME.stderr : FRAME.stdout, offsetBytes(offset), data));
        reader.offset = offset + data.length;
      }
      exec.acknowledge(send);
      if (pieces.length > 0) continue;
      if (ended || !follow) break;
      await exec.changed.wait({ since, signal: gone.signal });
    }
    if (exec.end !== null)
      await write(streamFrame(FRAME.exit, Buffer.from(JSON.stringify(reportOf(instance_id, exec)))));
    else if (!follow) await write(streamFrame(FRAME.end));
    stream.end();
  } catch {
    stream.destroy();
  } finally {
    leave();
    endWait(!left);
    input?.end(!left);
  }
}

function takeInput(
  stream: Duplex,
  { exec, send, input }: Reading,
  signal: AbortSignal,
  onFrame: (type: number) => void,
): void {
  const frames = new StreamFrames();
  const take = async ({ type, payload }: StreamFrame): Promise<void> => {
    onFrame(type);
    if (exec.end !== null || !input) return;
    if (type === FRAME.input) await exec.write(send, payload, false, signal);
    else if (type === FRAME.eof) await exec.write(send, Buffer.alloc(0), true, signal);
    else if (type === FRAME.resize && payload.length === 4) send(TO_GUEST.resize, payload);
    else if (type === FRAME.signal && payload.length === 1) send(TO_GUEST.signal, payload);
  };
  stream.on('data', (chunk: Buffer) => {
    stream.pause();
    void (async () => {
      for (const frame of frames.push(chunk)) await take(frame);
    })().then(
      () => stream.resume(),
      () => stream.destroy(),
    );
  });
}
