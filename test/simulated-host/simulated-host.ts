/**
 * A host whose VMs are simulated. It speaks the agent's protocol with the real client, and needs neither QEMU nor disks
 * nor root. It keeps everything in memory, so all is lost at its end.
 *
 * `npm run dev` uses it, tests of a control plane whose hosts work by themselves, and the benchmark of a large fleet. A
 * test that decides about each report uses `support/scripted-agent.ts` instead.
 */
import type { Duplex } from 'node:stream';
import { MinuteLog, readingsOf } from '../../src/host/calls/vm-meters.ts';
import type { ControlPlaneClient } from '../../src/protocol/client.ts';
import {
  type CallFailure,
  type ExecResult,
  type HostCall,
  notListeningMessage,
  type PendingCall,
  RESULTS,
  type VmSample,
} from '../../src/protocol/host-calls.ts';
import type { HostFacts } from '../../src/protocol/host-types.ts';
import { conforms } from '../../src/protocol/schemas.ts';
import { Signal } from '../../src/shared/concurrency.ts';
import { messageOf } from '../../src/shared/errors.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { createLog, type Log } from '../../src/shared/log.ts';
import { backoffMs, pause } from '../../src/shared/retry.ts';
import { joinStreams } from '../../src/shared/streams.ts';
import { runCommand } from './simulated-execs.ts';
import type { SimulatedGuest } from './simulated-guest.ts';
import { IMAGE_VERSION, SimulatedVm } from './simulated-vm.ts';

const FACTS: HostFacts = {
  accelerator: 'tcg',
  accelerator_reason: 'simulated',
  cpus: 64,
  memory_mib: 256 * 1024,
  images: [{ id: 'debian-12', version: IMAGE_VERSION }],
  object_store_problem: null,
  enforces_egress: true,
  isolation_problem: null,
};

const HEARTBEAT_MS = 5_000;
const LEASE_TIMEOUT_MS = 10_000;
const SAMPLE_MS = 15_000;
/** Of each VM: an hour. */
const SAMPLES = 240;
const ANSWER_TRIES = 3;

export interface SimulatedHostOptions {
  readonly client: ControlPlaneClient;
  /** How long a boot, a reboot and a shutdown take. Default: no time. */
  readonly boot_ms?: number;
  /** Replaces what a command answers whose caller waits. */
  readonly answerCommand?: (command: readonly string[]) => Promise<ExecResult>;
  /** A connection to the sshd of any guest. Default: there is none. */
  readonly connectSshd?: () => Promise<Duplex>;
  readonly log?: Log;
}

type CallOf<K extends HostCall['kind']> = Extract<HostCall, { kind: K }>;

class CallRefusal extends Error {
  override name = 'CallRefusal';
  readonly code: CallFailure['code'];

  constructor(code: CallFailure['code'], message: string) {
    super(message);
    this.code = code;
  }
}

export class SimulatedHost {
  readonly client: ControlPlaneClient;
  readonly #options: SimulatedHostOptions;
  readonly #log: Log;
  readonly #vms = new Map<InstanceId, { readonly vm: SimulatedVm; readonly done: Promise<void> }>();
  readonly #execs_changed = new Signal();
  readonly #minutes: MinuteLog;
  readonly #samples = new WeakMap<SimulatedGuest, VmSample[]>();
  readonly #ending = new AbortController();
  #loops: Promise<unknown> = Promise.resolve();

  constructor(options: SimulatedHostOptions) {
    this.client = options.client;
    this.#options = options;
    this.#log = options.log ?? createLog('simulated-host', 'silent');
    this.#minutes = new MinuteLog(this.#log);
  }

  /** Resolves when the control plane knows the host, which then works until `close`. */
  async connect(): Promise<void> {
    const { signal } = this.#ending;
    await this.heartbeat();
    let seen: string | null = null;
    this.#loops = Promise.all([
      this.#repeat(async () => {
        await pause(HEARTBEAT_MS, signal);
        await this.heartbeat();
        await this.client.renewLease({ kept_ms: null }, LEASE_TIMEOUT_MS, signal);
      }),
      this.#repeat(async () => {
        const { etag, assignments } = await this.client.poll({ seen }, signal);
        if (etag !== seen) this.#assign(assignments);
        seen = etag;
      }),
      this.#serveCalls(),
      this.#repeat(() => this.#reportExecs()),
      this.#repeat(() => this.#measure()),
    ]);
  }

  async heartbeat(): Promise<void> {
    const disks = [...this.#vms.values()]
      .filter(({ vm }) => vm.guest !== null)
      .map(({ vm: { instance_id, dirty_bytes } }) => ({ instance_id, dirty_bytes }));
    await this.client.heartbeat({ facts: FACTS, disks });
  }

  /** As when the machine dies: nothing more is reported. */
  async close(): Promise<void> {
    this.#ending.abort();
    for (const { vm } of this.#vms.values()) vm.close();
    await Promise.all([this.#loops, ...[...this.#vms.values()].map(({ done }) => done)]);
    await this.client.close();
  }

  async #repeat(step: () => Promise<unknown>): Promise<void> {
    const { signal } = this.#ending;
    for (let failures = 0; !signal.aborted; ) {
      try {
        await step();
        failures = 0;
      } catch (error) {
        this.#log.debug({ reason: messageOf(error) }, 'the control plane does not answer');
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
  }

  #assign(assignments: Awaited<ReturnType<ControlPlaneClient['poll']>>['assignments']): void {
    const assigned = new Set<InstanceId>();
    for (const assignment of assignments) {
      assigned.add(assignment.instance_id);
      this.#keep(assignment.instance_id).assign(assignment);
    }
    for (const [instance_id, { vm }] of this.#vms) if (!assigned.has(instance_id)) vm.assign(null);
  }

  #keep(instance_id: InstanceId): SimulatedVm {
    const present = this.#vms.get(instance_id);
    if (present) return present.vm;
    const { boot_ms = 0 } = this.#options;
    const { client } = this;
    const around = { client, boot_ms, execsChanged: this.#execs_changed.notify, log: this.#log };
    const vm = new SimulatedVm(instance_id, around);
    const done = vm.run().finally(() => this.#vms.delete(instance_id));
    this.#vms.set(instance_id, { vm, done });
    return vm;
  }

  async #serveCalls(): Promise<void> {
    let fresh = true;
    await this.#repeat(async () => {
      const { calls } = await this.client.calls({ fresh }, this.#ending.signal);
      fresh = false;
      for (const call of calls) void this.#answer(call);
    });
  }

  async #answer({ id, call }: PendingCall): Promise<void> {
    const answer = await this.#execute(id, call).then(
      (result) => {
        if (!conforms(RESULTS[call.kind], result)) throw new Error(`no sensible answer to ${call.kind}`);
        return { result };
      },
      (error: unknown) => ({ error: failureOf(error) }),
    );
    for (let attempt = 0; attempt < ANSWER_TRIES; attempt++) {
      try {
        await this.client.answerCall({ id, answer });
        return;
      } catch {
        // As an agent does, which goes on to the next control plane.
        await pause(backoffMs(attempt, 100, 1_000), this.#ending.signal);
      }
    }
  }

  async #execute(id: string, call: HostCall): Promise<unknown> {
    const openStream = () => this.client.openConsole(id);
    switch (call.kind) {
      case 'usage': {
        const vms = [...this.#vms].flatMap(([instance_id, { vm }]) =>
          vm.guest ? [{ instance_id, sample: vm.guest.sample() }] : [],
        );
        return { vms };
      }
      case 'console_log': {
        const text = this.#vms
          .get(call.instance_id)
          ?.vm.console.read(call.max_bytes, call.timestamps === true);
        return { text: text ?? '' };
      }
      case 'console': {
        this.#guest(call);
        this.#vms.get(call.instance_id)?.vm.console.attach(await openStream());
        return null;
      }
      case 'exec':
        if (this.#options.answerCommand) return this.#options.answerCommand(call.command);
        return runCommand(this.#guest(call), call);
      case 'exec_start':
        this.#vm(call).execs.start(this.#guest(call), call);
        return { refused: null };
      case 'exec_control':
        return { outcome: this.#exec(call).control(call.action) };
      case 'exec_stream': {
        const exec = this.#exec(call);
        void exec.stream(await openStream(), call.instance_id, call);
        return null;
      }
      case 'file': {
        const { files } = this.#guest(call);
        void files.serve(await openStream(), call.action);
        return null;
      }
      case 'port': {
        const connection = this.#guest(call).connect(call.port);
        if (connection === null) throw new CallRefusal('not_listening', notListeningMessage(call.port));
        joinStreams(await openStream(), connection);
        return null;
      }
      case 'open_port': {
        const address = await this.#guest(call).listen(call.port);
        if (address === null) throw new CallRefusal('not_listening', notListeningMessage(call.port));
        return { address };
      }
      case 'metrics': {
        const guest = this.#guest(call);
        const samples = this.#samples.get(guest) ?? [];
        return { now: guest.sample(), interval_seconds: SAMPLE_MS / 1_000, samples };
      }
      case 'ssh':
        this.#guest(call);
        if (this.#options.connectSshd) {
          joinStreams(await openStream(), await this.#options.connectSshd());
          return null;
        }
        throw new CallRefusal('failed', 'A simulated guest has no sshd. Use execs, files or the console.');
    }
  }

  #vm({ instance_id }: { readonly instance_id: InstanceId }): SimulatedVm {
    const found = this.#vms.get(instance_id);
    if (!found) throw new CallRefusal('not_running', 'The VM is no longer running.');
    return found.vm;
  }

  #guest(call: { readonly instance_id: InstanceId; readonly vm_id: string }): SimulatedGuest {
    const guest = this.#vm(call).guestOf(call.vm_id);
    if (!guest) throw new CallRefusal('not_running', 'The VM is no longer running.');
    return guest;
  }

  #exec({ instance_id, exec_id }: Pick<CallOf<'exec_stream'>, 'instance_id' | 'exec_id'>) {
    const exec = this.#vms.get(instance_id)?.vm.execs.find(exec_id);
    if (!exec) throw new CallRefusal('gone', 'This host does not have the exec, or its output, any more.');
    return exec;
  }

  async #reportExecs(): Promise<void> {
    const since = this.#execs_changed.count;
    for (const { vm } of this.#vms.values()) {
      const execs = vm.execs.unreported();
      if (execs.length === 0) continue;
      await this.client.reportExecs({ execs }, this.#ending.signal);
      vm.execs.noteReported(execs);
    }
    await this.#execs_changed.wait({ since, signal: this.#ending.signal });
  }

  async #measure(): Promise<void> {
    await pause(SAMPLE_MS, this.#ending.signal);
    for (const [instance_id, { vm }] of this.#vms) {
      if (!vm.guest) continue;
      const samples = this.#samples.get(vm.guest) ?? [];
      const before = samples.at(-1);
      const sample = vm.guest.sample();
      samples.push(sample);
      if (samples.length > SAMPLES) samples.shift();
      this.#samples.set(vm.guest, samples);
      const readings = readingsOf(sample, { before, heard: before, dirty: vm.dirty_bytes });
      this.#minutes.add(instance_id, Date.now(), readings);
    }
    this.#minutes.endBefore(Date.now());
    await this.#minutes.send((body) => this.client.reportMinutes(body, this.#ending.signal));
  }
}

function failureOf(error: unknown): CallFailure {
  if (error instanceof CallRefusal) return { code: error.code, message: error.message };
  return { code: 'failed', message: `The simulated host could not do it: ${messageOf(error)}` };
}
