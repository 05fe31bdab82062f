/**
 * The VM of one instance on a simulated host. The real reconciler decides each next step. A step changes a guest in
 * memory, and reports what a real host would report.
 *
 *   none ──start──▶ booting ──await_guest──▶ up ──power_off──▶ off ──save──▶ none
 *   (any) ──crash──▶ none ──report_died──▶ failed
 *
 * A flush commits a generation without segments. Its receipt is real, but the content is only in this process. So a
 * disk begins empty if this simulator did not write its head: after its own restart, a fork or a restore.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { AutoFlush } from '../../src/host/reconciler/flushes.ts';
import {
  type BootEnding,
  hasEnded,
  interrupts,
  type MachineView,
  nextStep,
  type Step,
} from '../../src/host/reconciler/next-step.ts';
import { type ControlPlaneClient, ControlPlaneUnavailable } from '../../src/protocol/client.ts';
import type {
  Assignment,
  Consistency,
  DiskHead,
  FlushResult,
  MemoryRef,
  Observation,
  Reason,
  ReportResponse,
} from '../../src/protocol/types.ts';
import { present } from '../../src/shared/assert.ts';
import { Signal } from '../../src/shared/concurrency.ts';
import type { FlushId, InstanceId, VmId } from '../../src/shared/ids.ts';
import type { Log } from '../../src/shared/log.ts';
import { backoffMs, pause } from '../../src/shared/retry.ts';
import { fingerprintOf } from '../../src/shared/ssh-fingerprint.ts';
import { FileTree } from './file-tree.ts';
import { SimulatedExecs } from './simulated-execs.ts';
import { SimulatedConsole, SimulatedGuest } from './simulated-guest.ts';

/** Of the one image that a simulated host has. */
export const IMAGE_VERSION = 'a'.repeat(64);
const HOST_KEY = {
  type: 'ssh-ed25519',
  fingerprint: `SHA256:${'0'.repeat(43)}`,
  public_key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGQw',
};
/** Nothing listens there: the simulated guest has no sshd. */
const SSH_ADDRESS = '127.0.0.1:1';
/** What a change of a file makes dirty, roughly. */
const DIRTY_BYTES = 65_536;

const NO_TRACE: Reason = {
  code: 'vm_died',
  message: 'The simulated host was started again, and had the VM in memory only.',
};
const CRASHED: Reason = {
  code: 'guest_panicked',
  message: 'The simulated guest crashed, as it was told to.',
};
const LOST: Reason = {
  code: 'recovered',
  message: 'The simulated host has lost what the last VM wrote after its last flush.',
};
const MEMORY_LOST: Reason = {
  code: 'resume_failed',
  message:
    'The simulated host was started again, and had the memory only in its own. Stop the VM, and start it.',
};

export interface VmSurroundings {
  readonly client: ControlPlaneClient;
  /** How long a boot, a reboot and a shutdown take. */
  readonly boot_ms: number;
  /** Something of an exec is to be reported. */
  readonly execsChanged: () => void;
  readonly log: Log;
}

interface Machine {
  readonly vm_id: VmId;
  readonly guest: SimulatedGuest;
  view: Extract<MachineView, 'booting' | 'up' | 'off'>;
  reboots_done: number;
  resets_unreported: number;
  readonly recovered: Reason | null;
  readonly resumed: boolean;
}

interface Disk {
  readonly files: FileTree;
  /** The head that it equals, but for what is dirty. */
  based_on: string;
  dirty_bytes: number;
}

export class SimulatedVm {
  readonly instance_id: InstanceId;
  readonly execs: SimulatedExecs;
  readonly console = new SimulatedConsole();
  readonly #around: VmSurroundings;
  readonly #changed = new Signal();
  readonly #closing = new AbortController();
  readonly #auto = new AutoFlush(this.#changed.notify);
  #assignment: Assignment | null = null;
  #step: { readonly name: Step; readonly abort: AbortController } | null = null;
  #machine: Machine | null = null;
  #disk: Disk | null = null;
  #launched: VmId | null = null;
  #ended: BootEnding | null = null;
  #flushed: FlushId | null = null;
  #grown_bytes = 0;
  #removed = false;
  #applied_keys = '';
  /** Memory that is durable, and that of a suspended boot. */
  #saved: { readonly vm_id: VmId; readonly memory: MemoryRef } | null = null;
  #suspended: { readonly key: string; readonly machine: Machine } | null = null;

  constructor(instance_id: InstanceId, around: VmSurroundings) {
    this.instance_id = instance_id;
    this.#around = around;
    this.execs = new SimulatedExecs(instance_id, () => {
      this.#touch();
      around.execsChanged();
    });
  }

  /** The guest of boot `vm_id`, while it runs. */
  guestOf(vm_id: string): SimulatedGuest | null {
    const machine = this.#machine;
    return machine?.vm_id === vm_id && machine.view === 'up' ? machine.guest : null;
  }

  /** The guest that runs, if any. */
  get guest(): SimulatedGuest | null {
    return this.#machine && this.guestOf(this.#machine.vm_id);
  }

  get dirty_bytes(): number {
    return this.#disk?.dirty_bytes ?? 0;
  }

  /** Null: the instance is no longer assigned to this host. */
  assign(assignment: Assignment | null): void {
    const before = this.#assignment;
    this.#assignment = assignment;
    if (assignment?.vm_id !== before?.vm_id) this.#ended = null;
    if (this.#step && interrupts(this.#step.name, before, assignment)) this.#step.abort.abort();
    this.#auto.configure(assignment?.desired === 'running' ? assignment.spec.auto_flush_seconds : null);
    this.#changed.notify();
  }

  /** Until the instance is deleted, or until `close`. */
  async run(): Promise<void> {
    for (let failures = 0; !this.#closing.signal.aborted && !this.#removed; ) {
      const since = this.#changed.count;
      const step = nextStep(this.#situation());
      const applied_keys = this.#unappliedKeys();
      if (step === 'nothing' && applied_keys === null) {
        await this.#changed.wait({ since, signal: this.#closing.signal });
        continue;
      }
      const abort = new AbortController();
      const signal = AbortSignal.any([abort.signal, this.#closing.signal]);
      this.#step = { name: step, abort };
      try {
        if (applied_keys !== null) await this.#applyKeys(applied_keys);
        await this.#take(step, signal);
        failures = 0;
      } catch (error) {
        if (!signal.aborted && !(error instanceof ControlPlaneUnavailable))
          this.#around.log.warn(
            { err: error, step, instance_id: this.instance_id },
            'a simulated step failed',
          );
        await pause(backoffMs(failures++, 100, 2_000), signal);
      } finally {
        this.#step = null;
      }
    }
    this.#auto.close();
    this.#endMachine();
  }

  /** The VM is gone with the simulator. */
  close(): void {
    this.#closing.abort();
  }

  #situation(): Parameters<typeof nextStep>[0] {
    const assignment = this.#assignment;
    const machine = this.#machine;
    const vm_id = assignment?.vm_id ?? null;
    const is_stale = machine !== null && vm_id !== null && machine.vm_id !== vm_id;
    return {
      desired: assignment?.desired ?? 'unassigned',
      machine: is_stale ? 'stale' : (machine?.view ?? 'none'),
      launched: (vm_id !== null && this.#launched === vm_id) || assignment?.guest_ran === true,
      unsaved: machine === null && this.dirty_bytes > 0,
      saved: this.#saved !== null && this.#saved.vm_id === vm_id,
      suspend_abandoned: false,
      silent: false,
      ended: assignment !== null && hasEnded(this.#ended, assignment),
      reboots_wanted: assignment?.reboots ?? 0,
      reboots_done: machine?.reboots_done ?? 0,
      flush_asked: (assignment?.flush_id ?? this.#flushed) !== this.#flushed,
      flush_due: this.#auto.due,
      growth_wanted: assignment?.disk_grows === true && assignment.spec.disk_bytes > this.#grown_bytes,
      problem_unreported: false,
    };
  }

  async #take(step: Step, signal: AbortSignal): Promise<void> {
    if (step === 'end_machine') return this.#endMachine();
    const assignment = present(this.#assignment, 'assignment');
    switch (step) {
      case 'start':
        return this.#start(assignment);
      case 'await_guest':
        return this.#awaitGuest(assignment, signal);
      case 'reboot':
        this.#reset(assignment.reboots);
        return;
      case 'flush':
      case 'save_offline':
        return this.#flush(assignment, step === 'flush' ? 'filesystem' : 'crash');
      case 'grow_disk':
        this.#grown_bytes = assignment.spec.disk_bytes;
        await this.#report(assignment, { kind: 'disk_grown', disk_bytes: this.#grown_bytes });
        return;
      case 'suspend':
        return this.#suspend(assignment);
      case 'power_off':
        if (!assignment.force) await pause(this.#around.boot_ms, signal);
        if (!signal.aborted) this.#powerOff();
        return;
      case 'save':
        await this.#save(assignment, 'offline');
        this.#endMachine();
        return this.#reportStopped(assignment);
      case 'remove':
        return this.#remove(assignment);
      case 'report_powered_off':
        await this.#report(assignment, { kind: 'powered_off' });
        return this.#setDesired(assignment, 'stopped');
      case 'report_suspended':
        return this.#reportSuspended(assignment);
      case 'report_stopped':
        return this.#reportStopped(assignment);
      case 'report_died':
        await this.#report(assignment, {
          ...{
            kind: 'failed',
            reason: this.#launched === assignment.vm_id ? CRASHED : NO_TRACE,
            guest_ran: true,
          },
        });
        this.#ended = { vm_id: assignment.vm_id, how: 'failed' };
        return;
      case 'cancel_suspend':
      case 'report_problem':
      case 'nothing':
        return;
    }
  }

  async #start(assignment: Assignment): Promise<void> {
    const { vm_id, resume, spec } = assignment;
    if (resume !== null) {
      const kept = this.#suspended;
      if (kept?.key !== resume.key) {
        await this.#report(assignment, { kind: 'resume_failed', reason: MEMORY_LOST });
        this.#ended = { vm_id, how: 'suspended' };
        return;
      }
      this.#suspended = null;
      this.#launched = vm_id;
      this.#machine = { ...kept.machine, vm_id, view: 'booting', resumed: true };
      return;
    }
    const head = await this.#head();
    const kept = this.#disk?.based_on === head.commit_id ? this.#disk : null;
    const disk = kept ?? {
      files: new FileTree(() => this.#touch()),
      based_on: head.commit_id,
      dirty_bytes: 0,
    };
    disk.dirty_bytes = kept?.dirty_bytes ?? 0;
    this.#disk = disk;
    this.#launched = vm_id;
    const power = (what: 'off' | 'reboot' | 'crash') => {
      if (what === 'off') this.#powerOff();
      else if (what === 'crash') this.#endMachine();
      else this.#reset();
      this.#changed.notify();
    };
    this.#machine = {
      ...{ vm_id, view: 'booting', reboots_done: 0, resets_unreported: 0, resumed: false },
      guest: new SimulatedGuest(spec, disk.files, this.console, power),
      recovered: assignment.previous_failed && kept === null ? LOST : null,
    };
  }

  async #awaitGuest(assignment: Assignment, signal: AbortSignal): Promise<void> {
    const machine = present(this.#machine, 'machine');
    if (machine.resets_unreported > 0) await this.#report(assignment, { kind: 'rebooting' });
    machine.resets_unreported = 0;
    if (!(await pause(this.#around.boot_ms, signal))) return;
    const applied_keys = assignment.authorized_keys.map(fingerprintOf);
    const { reboots_done: reboots, recovered, resumed } = machine;
    const outcome = await this.#report(assignment, {
      ...{
        kind: 'running',
        reboots,
        ssh_address: SSH_ADDRESS,
        host_keys: [HOST_KEY],
        applied_keys,
        recovered,
      },
      ...(resumed ? { resumed } : {}),
    });
    if (outcome === 'fenced') return;
    this.#applied_keys = applied_keys.join();
    machine.view = 'up';
  }

  /** Fingerprints that the guest is to accept, if they are others than it does. */
  #unappliedKeys(): readonly string[] | null {
    const assignment = this.#assignment;
    if (assignment === null || this.guestOf(assignment.vm_id) === null) return null;
    const fingerprints = assignment.authorized_keys.map(fingerprintOf);
    return fingerprints.join() === this.#applied_keys ? null : fingerprints;
  }

  async #applyKeys(applied_keys: readonly string[]): Promise<void> {
    const { vm_id, epoch } = present(this.#assignment, 'assignment');
    await this.#around.client.reportKeys({ vm_id, epoch, applied_keys });
    this.#applied_keys = applied_keys.join();
  }

  /** By the guest, or for a restart that was asked for. */
  #reset(reboots?: number): void {
    const machine = this.#machine;
    if (!machine) return;
    this.execs.loseAll();
    machine.view = 'booting';
    machine.resets_unreported += 1;
    machine.reboots_done = reboots ?? machine.reboots_done;
  }

  #powerOff(): void {
    this.execs.loseAll();
    if (this.#machine) this.#machine.view = 'off';
  }

  #endMachine(): void {
    this.execs.loseAll();
    this.#machine?.guest.end();
    this.#machine = null;
  }

  async #flush(assignment: Assignment, consistency: Consistency): Promise<void> {
    const { client } = this.#around;
    const { flush_id } = assignment;
    this.#auto.began();
    const is_asked = flush_id !== null && flush_id !== this.#flushed;
    if (is_asked) await client.reportFlush({ flush_id, state: 'running' });
    const result = await this.#save(assignment, consistency);
    this.#auto.ended(true);
    if (is_asked) await client.reportFlush({ flush_id, state: 'done', result });
    this.#flushed = flush_id;
  }

  /** Makes the head equal to the disk: by a generation without segments, if anything is dirty. */
  async #save(assignment: Assignment, consistency: Consistency): Promise<FlushResult> {
    const began_ms = performance.now();
    const { instance_id, vm_id, epoch } = assignment;
    const head = await this.#head();
    const dirty_bytes = this.dirty_bytes;
    let { commit_id } = head;
    if (dirty_bytes > 0) {
      commit_id = randomUUID();
      const { outcome } = await this.#around.client.commit({
        ...{ instance_id, vm_id, epoch, commit_id, consistency, dirty_bytes, segments: [] },
        generation: head.generation + 1,
        parent_id: head.commit_id,
        image_version: head.image_version ?? IMAGE_VERSION,
      });
      if (outcome === 'fenced') {
        this.#fence(assignment);
        throw new Error('the commit was fenced');
      }
    }
    if (this.#disk) this.#disk.based_on = commit_id;
    if (this.#disk) this.#disk.dirty_bytes -= dirty_bytes;
    const duration_ms = Math.round(performance.now() - began_ms);
    return { commit_id, dirty_bytes, uploaded_bytes: 0, segments: 0, duration_ms, consistency };
  }

  async #suspend(assignment: Assignment): Promise<void> {
    const { instance_id, vm_id, epoch, spec } = assignment;
    await this.#save(assignment, 'filesystem');
    const head = await this.#head();
    const key = head.keys.find(({ use }) => use === 'memory');
    const memory: MemoryRef = {
      key: `disks/${instance_id}/mem/${epoch}-${randomBytes(4).toString('hex')}`,
      ...{ parts: 1, memory_bytes: spec.memory_mib * 2 ** 20, stored_bytes: 4096 },
      key_id: present(key?.key_id, 'key of the memory'),
      salt: randomBytes(32).toString('base64'),
      ...{ epoch, generation: head.generation, frozen: false, authorized_keys: null },
      traits: { qemu: 'simulated', hardware: 'simulated', image_version: IMAGE_VERSION, host_cpu: '' },
    };
    this.#saved = { vm_id, memory };
  }

  async #reportSuspended(assignment: Assignment): Promise<void> {
    const { memory } = present(this.#saved, 'saved memory');
    const machine = this.#machine;
    const outcome = await this.#report(assignment, { kind: 'suspended', memory });
    this.#saved = null;
    if (outcome === 'unwanted') {
      if (assignment.desired === 'suspended') this.#setDesired(assignment, 'running');
      return;
    }
    if (machine && outcome !== 'fenced') this.#suspended = { key: memory.key, machine };
    this.#machine = null;
    this.#ended = { vm_id: assignment.vm_id, how: 'suspended' };
  }

  async #reportStopped(assignment: Assignment): Promise<void> {
    const { vm_id } = assignment;
    const { commit_id } = await this.#head();
    const outcome = await this.#report(assignment, { kind: 'stopped', commit_id });
    if (outcome === 'fenced') return;
    this.#ended = { vm_id, how: outcome === 'unwanted' ? 'failed' : 'stopped' };
    if (outcome === 'unwanted') this.#setDesired(assignment, 'failed');
  }

  async #remove(assignment: Assignment): Promise<void> {
    await this.#report(assignment, { kind: 'deleted' });
    this.#removed = true;
  }

  async #report(assignment: Assignment, observed: Observation): Promise<ReportResponse['outcome']> {
    const { vm_id, epoch } = assignment;
    const { outcome } = await this.#around.client.report({ vm_id, epoch, observed });
    if (outcome === 'fenced') this.#fence(assignment);
    return outcome;
  }

  /** Another placement has the instance. */
  #fence({ vm_id }: Assignment): void {
    this.#endMachine();
    this.#disk = null;
    this.#ended = { vm_id, how: 'stopped' };
  }

  /** As the real reconciler, which knows earlier than the control plane what must follow. */
  #setDesired(assignment: Assignment, desired: Assignment['desired']): void {
    if (this.#assignment === assignment) this.#assignment = { ...assignment, desired };
  }

  async #head(): Promise<DiskHead> {
    return present(await this.#around.client.head(this.instance_id), 'head of the disk');
  }

  #touch(): void {
    if (!this.#disk) return;
    this.#disk.dirty_bytes += DIRTY_BYTES;
    this.#auto.observe(this.#disk.dirty_bytes);
  }
}
