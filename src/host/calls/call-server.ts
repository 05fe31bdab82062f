/**
 * Executes the calls that API callers wait for: commands, execs, files, ports, consoles and metrics. It polls the
 * control plane for calls, executes them in parallel, and answers each once. An answer that cannot be delivered is
 * dropped, because its caller's request has ended too.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import {
  type CallAnswer,
  type CallFailure,
  type ConsoleLogResult,
  type HostCall,
  notListeningMessage,
  type PendingCall,
  RESULTS,
} from '../../protocol/host-calls.ts';
import { conforms } from '../../protocol/schemas.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { joinStreams } from '../../shared/streams.ts';
import { inWork } from '../../shared/tracing.ts';
import type { HostExecs } from '../execs/host-execs.ts';
import {
  GuestAgentClosedError,
  GuestAgentProtocolError,
  GuestAgentTimeoutError,
} from '../guest/guest-agent.ts';
import type { HostContext } from '../host-context.ts';
import { sshEndpoint } from '../network/addresses.ts';
import type { Reconciler } from '../reconciler/reconciler.ts';
import { type Arrival, readArrivals } from '../vm/console-log.ts';
import { DrainedError, NotListeningError } from '../vm/guest-ports.ts';
import type { Machine } from '../vm/machine.ts';
import { vmFolder } from '../vm/record.ts';
import {
  CallError,
  readExec,
  serveCommand,
  serveExecControl,
  serveExecStart,
  serveFiles,
} from './exec-calls.ts';
import type { VmMeters } from './vm-meters.ts';

const ANSWER_TRIES = 3;
/** Bounds the answer to a metrics scrape. */
const USAGE_VMS = 500;

/** What calls need of a VM's runner. */
export type CalledReconciler = Pick<Reconciler, 'adopted' | 'isQuiet' | 'machineOf'>;

export class CallServer {
  readonly #context: HostContext;
  readonly #runnerOf: (id: InstanceId) => CalledReconciler | undefined;

  readonly #meters: VmMeters;
  readonly #execs: HostExecs;

  constructor(
    context: HostContext,
    runnerOf: (id: InstanceId) => CalledReconciler | undefined,
    { meters, execs }: { readonly meters: VmMeters; readonly execs: HostExecs },
  ) {
    this.#context = context;
    this.#runnerOf = runnerOf;
    this.#meters = meters;
    this.#execs = execs;
  }

  /** Until `signal` aborts, which fails the calls under way. */
  async run(signal: AbortSignal): Promise<void> {
    const under_way = new Set<Promise<void>>();
    let fresh = true;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const { calls } = await this.#context.client.calls({ fresh }, signal);
        failures = 0;
        fresh = false;
        for (const pending of calls) {
          const served = this.#serve(pending, signal).finally(() => under_way.delete(served));
          under_way.add(served);
        }
      } catch {
        // The poll for assignments logs that the control plane is away.
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
    await Promise.all(under_way);
  }

  #serve(pending: PendingCall, signal: AbortSignal): Promise<void> {
    const { call, trace_context: context } = pending;
    // Not of a scrape of metrics, for example, which is no part of a trace.
    const name = context?.traceparent === undefined ? null : `agent call ${call.kind}`;
    const attributes = { 'berth.instance_id': 'instance_id' in call ? call.instance_id : null };
    return inWork({ name, attributes, context }, () => this.#answer(pending, signal));
  }

  async #answer({ id, call }: PendingCall, signal: AbortSignal): Promise<void> {
    const { client, log } = this.#context;
    let answer: CallAnswer;
    try {
      const result = await this.#execute(id, call, signal);
      // A guest can send anything.
      if (!conforms(RESULTS[call.kind], result))
        throw new CallError('failed', 'The guest gave no sensible answer.');
      answer = { result };
    } catch (error) {
      answer = { error: failureOf(error) };
      if (answer.error.code === 'failed') log.warn({ err: error, call: call.kind }, 'a call failed');
    }
    for (let attempt = 0; attempt < ANSWER_TRIES; attempt++) {
      try {
        await client.answerCall({ id, answer });
        return;
      } catch {
        await pause(backoffMs(attempt, 100, 1_000), signal);
      }
    }
  }

  async #execute(id: string, call: HostCall, signal: AbortSignal): Promise<unknown> {
    // Its console log is there in any case.
    if (call.kind !== 'usage' && call.kind !== 'console_log')
      await this.#untilAdopted(call.instance_id, signal);
    switch (call.kind) {
      case 'console_log': {
        const { console_log } = vmFolder(this.#context.paths.vms, call.instance_id);
        return call.timestamps === true
          ? readTimedConsole(console_log, call.max_bytes)
          : readConsole(console_log, call.max_bytes);
      }
      case 'console':
        this.#machine(call).console.attach(await this.#context.client.openConsole(id));
        return null;
      case 'ssh': {
        const sshd = await dialSshd(this.#machine(call));
        try {
          joinStreams(await this.#context.client.openConsole(id), sshd);
        } catch (error) {
          sshd.destroy();
          throw error;
        }
        return null;
      }
      case 'port':
        await joinPort(this.#machine(call), call.port, () => this.#context.client.openConsole(id));
        return null;
      case 'open_port':
        return { address: await openPort(this.#machine(call), call.port) };
      case 'exec':
        return serveCommand(this.#machine(call), call, signal);
      case 'exec_start':
        return serveExecStart(this.#execs, this.#machine(call), call);
      case 'exec_control':
        return serveExecControl(this.#execs, call, signal);
      case 'exec_stream':
        await readExec(this.#execs, call, () => this.#context.client.openConsole(id));
        return null;
      case 'file':
        await serveFiles(this.#execs, this.#machine(call), call, () => this.#context.client.openConsole(id));
        return null;
      case 'usage':
        return this.#meters.newest(USAGE_VMS);
      case 'metrics': {
        const guest = this.#runnerOf(call.instance_id)?.isQuiet === true;
        return this.#meters.read(this.#machine(call), guest);
      }
    }
  }

  /** After a restart of the agent a VM seems to be gone until it is adopted. Ends when `signal` aborts, too. */
  async #untilAdopted(instance_id: InstanceId, signal: AbortSignal): Promise<void> {
    const { promise: aborted, resolve } = Promise.withResolvers<void>();
    const stop = () => resolve();
    signal.addEventListener('abort', stop);
    if (signal.aborted) stop();
    await Promise.race([this.#runnerOf(instance_id)?.adopted, aborted]);
    signal.removeEventListener('abort', stop);
  }

  /** @throws CallError not_running */
  #machine({ instance_id, vm_id }: { instance_id: InstanceId; vm_id: string }): Machine {
    const machine = this.#runnerOf(instance_id)?.machineOf(vm_id);
    if (!machine) throw new CallError('not_running', 'The VM is no longer running.');
    return machine;
  }
}

function failureOf(error: unknown): CallFailure {
  if (error instanceof CallError) return { code: error.code, message: error.message };
  if (error instanceof GuestAgentTimeoutError || error instanceof GuestAgentProtocolError) {
    return {
      code: 'guest_silent',
      message: "The guest's agent does not answer. Restart the VM to bring it back.",
    };
  }
  if (error instanceof GuestAgentClosedError) {
    return { code: 'not_running', message: 'The VM powered off or was restarted meanwhile.' };
  }
  return { code: 'failed', message: `The host could not do it: ${messageOf(error)}` };
}

/** Opens a guest's TCP port, and returns its address on this machine. @throws CallError not_running, not_listening */
export async function openPort(machine: Machine, port: number): Promise<string> {
  try {
    return await machine.ports.open(port);
  } catch (error) {
    throw asCallError(error, port);
  }
}

/** Joins a connection to the port with the caller's stream, which is opened once the guest has accepted. @throws as openPort */
async function joinPort(machine: Machine, port: number, openStream: () => Promise<Duplex>): Promise<void> {
  const socket = await machine.ports.connect(port).catch((error: unknown) => {
    throw asCallError(error, port);
  });
  try {
    joinStreams(await openStream(), socket);
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

function asCallError(error: unknown, port: number): unknown {
  if (error instanceof NotListeningError) return new CallError('not_listening', notListeningMessage(port));
  if (error instanceof DrainedError)
    return new CallError('not_running', 'The VM stops, restarts or suspends.');
  return error;
}

const DIAL_MS = 5_000;

/**
 * A connection to a VM's sshd for the ingress of another machine: only this host reaches its guests.
 * @throws CallError not_running
 */
export async function dialSshd({ record }: Machine): Promise<Socket> {
  const socket = connect({ ...sshEndpoint(record.network), noDelay: true, allowHalfOpen: true });
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(DIAL_MS) });
    // The VM may end before the other stream is connected.
    socket.on('error', () => socket.destroy());
    return socket;
  } catch (error) {
    socket.destroy();
    throw new CallError('not_running', `The guest's sshd cannot be reached: ${messageOf(error)}`);
  }
}

const LINE_FEED = 0x0a;
/** For a line of a time that is not known. */
const NO_TIME = '-';

/** The end of a VM's console log. */
async function readConsole(log_path: string, max_bytes: number): Promise<ConsoleLogResult> {
  try {
    await using file = await open(log_path, 'r');
    const { size } = await file.stat();
    const length = Math.min(size, max_bytes);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
    // Invalid UTF-8 becomes U+FFFD, also a character cut in two at the beginning.
    return { text: buffer.subarray(0, bytesRead).toString('utf8') };
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return { text: '' };
    throw error;
  }
}

/** The same with the time at which each line began to arrive, in front of it. At most `max_bytes` with the times. */
export function readTimedConsole(log_path: string, max_bytes: number): ConsoleLogResult {
  try {
    // Both at once: nothing is appended or dropped in between.
    return { text: timedText(readFileSync(log_path), readArrivals(log_path), max_bytes) };
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return { text: '' };
    throw error;
  }
}

function timedText(log: Buffer, arrivals: readonly Arrival[], max_bytes: number): string {
  const lines: string[] = [];
  let left_bytes = max_bytes;
  let nth = arrivals.length - 1;
  for (let end = log.length; end > 0 && left_bytes > 0; ) {
    // A line feed belongs to the line that it ends.
    const begin = end === 1 ? 0 : log.lastIndexOf(LINE_FEED, end - 2) + 1;
    while (nth >= 0 && (arrivals[nth]?.offset ?? 0) > begin) nth -= 1;
    const arrival = arrivals[nth];
    const time = arrival ? rfc3339(new Date(arrival.at_ms)) : NO_TIME;
    const bytes = end - begin + time.length + 1;
    // A line that is longer than the limit is cut at its beginning.
    if (bytes > left_bytes && lines.length > 0) break;
    const shown = log.subarray(Math.max(begin, end - left_bytes + time.length + 1), end);
    lines.push(`${time} ${shown.toString('utf8')}`);
    left_bytes -= bytes;
    end = begin;
  }
  return lines.reverse().join('');
}
