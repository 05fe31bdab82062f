/**
 * Executes calls that API callers wait for (commands, execs, files, consoles, metrics): polls the control plane for calls, executes them in
 * parallel, and answers each once. An answer that cannot be delivered is dropped: the caller's request has ended too.
 */

import {
  type CallAnswer,
  type CallFailure,
  type HostCall,
  type PendingCall,
  RESULTS,
} from '../../protocol/host-calls.ts';
import { fits } from '../../protocol/schemas.ts';
import { messageOf } from '../../shared/errors.ts';
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
import type { VmRunner } from '../reconciler/vm-runner.ts';
import type { Machine } from '../vm/machine.ts';
import { vmFolder } from '../vm/record.ts';
import { CallError } from './call-error.ts';
import { controlExec, readExec, runCommand, startExec } from './exec-calls.ts';
import { serveFiles } from './file-calls.ts';
import { dialSshd, joinPort, openPort } from './open-port.ts';
import { readConsole, readTimedConsole } from './read-console.ts';
import type { VmMeters } from './vm-meters.ts';

const ANSWER_TRIES = 3;
/** Bounds the answer to a metrics scrape. */
const USAGE_VMS = 500;

export class CallServer {
  readonly #context: HostContext;
  readonly #runnerOf: (id: InstanceId) => VmRunner | undefined;

  readonly #meters: VmMeters;
  readonly #execs: HostExecs;

  constructor(
    context: HostContext,
    runnerOf: (id: InstanceId) => VmRunner | undefined,
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
      if (!fits(RESULTS[call.kind], result))
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
        return runCommand(this.#machine(call), call, signal);
      case 'exec_start':
        return startExec(this.#execs, this.#machine(call), call);
      case 'exec_control':
        return controlExec(this.#execs, call, signal);
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
