/**
 * One QEMU process with its monitor, guest agent and console. It was launched by this agent, or adopted from an earlier
 * one.
 *
 *   launch ──▶ booting ──guest answers──▶ up ──RESET──▶ booting …
 *                 └──────────SHUTDOWN──────┴──▶ off        (from any state: gone, when the process ends)
 *   running ──a disk request fails on this host──▶ stalled ──cont, and no failure for some seconds──▶ running
 *
 * Invariant: the record on disk is never behind the process: it is written before the recorded action.
 */

import { join } from 'node:path';
import type { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import type { Reason } from '../../protocol/types.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { MachineDisk } from '../disk/dirty-blocks.ts';
import { type LazyOverlay, OverlayExport } from '../disk/lazy-overlay.ts';
import { GuestAgent } from '../guest/guest-agent.ts';
import { LoginWatch } from '../guest/sshd.ts';
import type { GuestNetwork } from '../network/guest-network.ts';
import type { VmUser } from '../qemu/confinement.ts';
import { vmSockets } from '../qemu/qemu-command.ts';
import { findMonitor, isProcessAlive, killProcess, onVmExit, waitForExit } from '../qemu/qemu-process.ts';
import { QmpClient, type QmpEvent, type QmpEventData } from '../qemu/qmp-client.ts';
import { ConsoleLog } from './console-log.ts';
import { type GuestPorts, guestPortsOf } from './guest-ports.ts';
import { type VmFolder, type VmRecord, writeRecord } from './record.ts';

const QUIT_MS = 5_000;
/** Ending a VM is worse than waiting: a host that is short of memory, or was suspended, may take this long. */
const MONITOR_MS = 60_000;
/** QEMU may wait for a read, and reconnects to a server that was away for long only every 16 s. */
const LAZY_MONITOR_MS = 120_000;
const AGENT_SILENT: Reason = {
  code: 'guest_agent_silent',
  message:
    "The guest's agent does not answer, or breaks its protocol: commands, metrics and changed SSH keys wait. Restart the VM if it stays so.",
};

export class Machine {
  readonly folder: VmFolder;
  readonly qmp: QmpClient;
  readonly agent: GuestAgent;
  readonly disk: MachineDisk;
  readonly ports: GuestPorts;
  readonly exported: OverlayExport;
  readonly logins: LoginWatch;
  readonly #log: Log;
  readonly #console: ConsoleLog;
  readonly #changed: () => void;
  readonly #stall: Stall;
  readonly #adopted: boolean;
  #record: VmRecord;
  #view: 'booting' | 'up' | 'off' = 'booting';
  #gone = false;
  #panicked = false;
  #cleanly_off = false;
  #halting = false;
  #bootEnded = new AbortController();
  #resets = 0;
  #damage: SegmentCorruptError | null = null;
  /** What feeds an overlay that is not whole yet. */
  #lazy: LazyOverlay | null = null;
  #booted: () => void = () => undefined;
  #given: readonly string[] | null;
  #access_problem: Reason | null = null;

  constructor(options: {
    folder: VmFolder;
    record: VmRecord;
    qmp: QmpClient;
    log: Log;
    /** Called when the view changes without a call. */
    changed: () => void;
    lazy: LazyOverlay | null;
    /** The VM's user; null: our own. */
    owner: VmUser | null;
    /** Of the VMs with TAP devices. */
    guest_network: GuestNetwork | null;
    /** Left by an earlier agent. */
    adopted?: boolean;
  }) {
    this.folder = options.folder;
    this.#record = options.record;
    this.qmp = options.qmp;
    this.#log = options.log;
    this.#changed = options.changed;
    this.#lazy = options.lazy;
    const resume = () => this.resumeIfStalled();
    const changed = () => {
      // A paused guest could not answer its agent's calls.
      this.agent.forgive();
      options.changed();
    };
    this.#stall = new Stall({ resume, changed, log: options.log });
    const sockets = vmSockets(options.folder.runtime);
    this.agent = new GuestAgent(sockets.agent, options.changed);
    this.disk = new MachineDisk(options.qmp);
    this.ports = guestPortsOf(this, options.guest_network);
    const { owner } = options;
    const socket_path = join(options.folder.runtime, owner ? 'disk/sock' : 'disk.sock');
    this.exported = new OverlayExport({ qmp: options.qmp, socket_path, owner });
    this.#adopted = options.adopted === true;
    this.#given = this.#adopted || options.record.resuming ? null : [];
    this.logins = new LoginWatch(this.agent, this.#adopted, options.log);
    this.#console = new ConsoleLog(sockets.console, options.folder.console_log);
    this.qmp.onEvent((event) => this.#handle(event));
    onVmExit(options.record.identity, options.qmp, () => {
      this.#gone = true;
      this.#booted();
      this.#disturbed();
    });
  }

  /**
   * Adopts a machine that an earlier agent left. null: its process is gone, or its monitor does not answer and the process was
   * ended. The view is `off`, or `booting` until the guest answers. Rejects, and disconnects, if the machine's state cannot be
   * queried, also while its process is stopped.
   */
  static async adopt(options: {
    folder: VmFolder;
    record: VmRecord;
    log: Log;
    changed: () => void;
    lazy: LazyOverlay | null;
    owner: VmUser | null;
    guest_network: GuestNetwork | null;
    /** How long its monitor may be silent. Default: 60 s, or 120 s with `lazy`. */
    patience_ms?: number;
  }): Promise<Machine | null> {
    const { record, folder, log } = options;
    if (!isProcessAlive(record.identity)) return null;
    const qmp = await findMonitor(record.identity, {
      path: vmSockets(folder.runtime).qmp,
      patience_ms: options.patience_ms ?? (options.lazy ? LAZY_MONITOR_MS : MONITOR_MS),
    });
    if (!(qmp instanceof QmpClient)) {
      log.error({ err: qmp, instance_id: record.instance_id }, 'a VM whose monitor does not answer is ended');
      killProcess(record.identity, 'SIGKILL');
      await waitForExit(record.identity, QUIT_MS);
      return null;
    }
    const machine = new Machine({ ...options, qmp, adopted: true });
    try {
      await machine.#settle();
    } catch (error) {
      // The monitor takes one client at a time: this connection would block the next try.
      machine.release();
      throw error;
    }
    return machine;
  }

  get record(): VmRecord {
    return this.#record;
  }
  get console(): ConsoleLog {
    return this.#console;
  }
  get view(): 'booting' | 'up' | 'off' {
    return this.#view;
  }
  /** The process has ended, or its monitor is lost. */
  get gone(): boolean {
    return this.#gone;
  }
  /** The guest shut itself down, and its file systems are consistent. */
  get cleanly_off(): boolean {
    return this.#cleanly_off;
  }
  get panicked(): boolean {
    return this.#panicked;
  }
  /** The guest is paused because it read a damaged segment. */
  get damage(): SegmentCorruptError | null {
    return this.#damage;
  }
  get lazy(): LazyOverlay | null {
    return this.#lazy;
  }
  /** The guest cannot run further: it panicked, or read damaged data. */
  get broken(): boolean {
    return this.#panicked || this.#damage !== null;
  }
  /** Why the guest waits for this host's disk. */
  get stall(): Reason | null {
    return this.#stall.reason;
  }
  /** What users should know of a running guest: it waits for this host's disk, its agent is silent, or nobody can log in. */
  get problem(): Reason | null {
    return this.stall ?? (this.agent.is_silent ? AGENT_SILENT : this.#access_problem);
  }
  /** Why nobody can log in, although the guest's agent answers. */
  get access_problem(): Reason | null {
    return this.#access_problem;
  }
  /** Number of resets, by the guest or by us. */
  get resets(): number {
    return this.#resets;
  }

  /** The guest is up, or was up before this agent: somebody may be logged in. */
  get may_be_connected(): boolean {
    if (this.#record.resuming) return true;
    return this.#view === 'up' || this.#may_have_been_up;
  }

  /** An adopted guest may serve users: its agent's silence is no reason to end it. */
  get survives_silence(): boolean {
    return this.#may_have_been_up && !this.#record.resuming && !this.#record.template;
  }

  get #may_have_been_up(): boolean {
    return this.#adopted && this.#resets === 0;
  }

  /** Lines of authorized_keys that the guest was started or suspended with. null: unknown, or it was reset or got others since. */
  get given_keys(): readonly string[] | null {
    return this.#given;
  }

  /** Ignored if the guest was reset since `resets`. */
  noteAccess(problem: Reason | null, resets: number): void {
    if (resets !== this.#resets) return;
    this.#access_problem = problem;
    this.#changed();
  }

  /** Ignored if the guest was reset since `resets`. */
  noteGiven(authorized_keys: readonly string[] | null, resets: number): void {
    if (resets === this.#resets) this.#given = authorized_keys;
  }

  /** Aborts when this boot of the guest ends: by a reset, power-off, panic, or the end of the process. */
  bootEnded(resets: number): AbortSignal {
    if (this.#resets !== resets || this.#view === 'off' || this.broken || this.#gone)
      return AbortSignal.abort();
    return this.#bootEnded.signal;
  }

  async update(change: Partial<VmRecord>): Promise<void> {
    this.#record = { ...this.#record, ...change };
    await writeRecord(this.folder, this.#record);
  }

  /** The guest answers. Ignored if it was reset since `resets`. */
  markUp(resets: number): void {
    if (this.#view !== 'booting' || resets !== this.#resets) return;
    this.#view = 'up';
    void this.ports
      .resume()
      .catch((error: unknown) =>
        this.#log.warn({ reason: messageOf(error) }, 'connections to the guest stay refused for a while'),
      );
    this.#booted();
  }

  /** Calls `effect` once the guest is up or the process has ended. */
  onceBooted(effect: () => void): void {
    if (this.#view === 'booting' && !this.#gone) this.#booted = effect;
    else effect();
  }

  /** Bytes marked in the bitmap since the last finished flush; null: unknown. */
  async markedBytes(): Promise<number | null> {
    return this.#record.full_compare ? null : this.disk.markedBytes();
  }

  /** Bytes that a running guest has written since the last finished flush, without the writes of the thaw. */
  async dirtyBytes(): Promise<number | null> {
    return (await this.disk.isUntouched()) ? 0 : this.markedBytes();
  }

  /** The overlay is whole, and QEMU no longer reads from our export. */
  async noteFilled(): Promise<void> {
    const lazy = this.#lazy;
    this.#lazy = null;
    await this.update({ lazy: null });
    // Not awaited: the filling calls this, and closing waits for the filling.
    void lazy?.close();
  }

  /** Resumes a guest that a failed disk request has paused; QEMU retries the request. */
  async resumeIfStalled(): Promise<void> {
    if (this.#gone) return;
    const { status } = await this.qmp.execute('query-status', undefined);
    // A halted machine keeps the status `io-error`, and its disk must stay quiet.
    if (this.#halting || this.#view === 'off') return;
    if (status === 'io-error') await this.qmp.execute('cont', undefined);
  }

  /** Stops the guest for good; its disk is quiet afterwards. */
  async halt(): Promise<void> {
    // QEMU finishes the reads under way before it stops.
    this.#lazy?.refuseReads();
    // Set before `stop` is sent: a `cont` sent after it would be executed after it.
    this.#halting = true;
    try {
      await this.qmp.execute('stop', undefined);
      this.#view = 'off';
    } finally {
      this.#halting = false;
    }
  }

  /** Ends the process, and resolves when it is gone. The overlay stays. */
  async end(): Promise<void> {
    const { identity } = this.#record;
    await this.#lazy?.refuseAll();
    if (!this.#gone)
      await this.qmp.execute('quit', undefined, { timeout_ms: QUIT_MS }).catch(() => undefined);
    if (this.#gone || !(await waitForExit(identity, QUIT_MS))) {
      killProcess(identity, 'SIGKILL');
      if (!(await waitForExit(identity, QUIT_MS)))
        throw new Error(`QEMU process ${identity.pid} does not end`);
    }
    await this.#lazy?.close();
    this.release();
    this.#gone = true;
    this.#booted();
  }

  /** Disconnects from the process without ending it. */
  release(): void {
    this.#stall.close();
    void this.#lazy?.close();
    this.agent.close();
    this.#console.close();
    this.qmp.close();
  }

  #handle(event: QmpEvent): void {
    switch (event.event) {
      case 'RESET':
        // QEMU resets the machine once when it starts, before the guest's first instruction.
        if (!this.#record.released) return;
        this.#resets += 1;
        this.#given = null;
        this.#access_problem = null;
        this.logins.reset();
        this.agent.forgive();
        this.#view = 'booting';
        this.#disturbed();
        return;
      case 'SHUTDOWN':
        if (!event.data.guest || event.data.reason === 'guest-panic') return;
        this.#view = 'off';
        this.#cleanly_off = true;
        this.#disturbed();
        return;
      case 'GUEST_PANICKED':
        this.#panicked = true;
        this.#disturbed();
        return;
      case 'BLOCK_IO_ERROR':
        if (event.data.action === 'stop') this.#handleIoError(event.data);
        return;
      default:
        return;
    }
  }

  #handleIoError(failed: QmpEventData['BLOCK_IO_ERROR']): void {
    // Each failed request has its event, and there may be thousands: log the first.
    if (this.stall === null)
      this.#log.error(
        { instance_id: this.#record.instance_id, reason: untrustedText(failed.reason) },
        'a disk request failed; the VM waits',
      );
    const damage = this.#lazy?.takeDamage() ?? null;
    this.#damage = failed.operation === 'read' ? damage : null;
    if (this.#damage) this.#disturbed();
    else this.#stall.began(failed);
  }

  #disturbed(): void {
    this.#bootEnded.abort(new Error('the machine was reset, went off, or ended'));
    this.#bootEnded = new AbortController();
    this.#changed();
  }

  /** Queries an adopted machine's state, and resumes it where the agent's death has left it paused. */
  async #settle(): Promise<void> {
    const { status } = await this.qmp.execute('query-status', undefined);
    if (status === 'shutdown') {
      this.#view = 'off';
      this.#cleanly_off = true;
    }
    if (status === 'guest-panicked') this.#panicked = true;
    const { suspending, resuming, released } = this.#record;
    // An agent died during a forced stop. A suspend is repaired by the caller.
    if (status === 'paused' && !suspending && !resuming) this.#view = 'off';
    if (status === 'paused' && resuming && released) await this.qmp.execute('cont', undefined);
    await this.resumeIfStalled();
    // The record says that the guest runs; the agent died just before it sent `cont`.
    if (status === 'prelaunch' && this.#record.released) await this.qmp.execute('cont', undefined);
  }
}

const RETRY_MS = 1_000;
/** A resumed guest meets a full disk again at its next write, which may take a moment. */
const OVER_AFTER_MS = 3_000;

/**
 * A guest that QEMU has paused because a disk request failed on this host (`werror=stop`, `rerror=stop`). QEMU keeps the request.
 * It is retried every second, and the guest never sees an error.
 *
 *   running ──BLOCK_IO_ERROR──▶ stalled ──cont, and no failure for some seconds──▶ running
 */
class Stall {
  readonly #resume: () => Promise<void>;
  readonly #changed: () => void;
  readonly #log: Log;
  #reason: Reason | null = null;
  #timer: NodeJS.Timeout | undefined;

  /** `resume` continues the guest; `changed` is called when the reason changes. */
  constructor(options: { resume: () => Promise<void>; changed: () => void; log: Log }) {
    this.#resume = options.resume;
    this.#changed = options.changed;
    this.#log = options.log;
  }

  /** null: the guest is not stalled. */
  get reason(): Reason | null {
    return this.#reason;
  }

  /** A request failed and paused the guest. Several may fail at once. */
  began(failed: QmpEventData['BLOCK_IO_ERROR']): void {
    this.#become(reasonOf(failed));
    this.#in(RETRY_MS, () => void this.#retry());
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  async #retry(): Promise<void> {
    // Set before the resume: a request that fails again replaces this timer.
    this.#in(OVER_AFTER_MS, () => this.#become(null));
    try {
      await this.#resume();
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'the VM could not be resumed');
      this.#in(RETRY_MS, () => void this.#retry());
    }
  }

  #in(ms: number, act: () => void): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, ms);
  }

  #become(reason: Reason | null): void {
    const before = this.#reason;
    this.#reason = reason;
    if (before?.code !== reason?.code) this.#changed();
  }
}

function reasonOf({ nospace, operation, reason }: QmpEventData['BLOCK_IO_ERROR']): Reason {
  const waits = 'The VM waits, and goes on by itself.';
  return nospace
    ? { code: 'disk_full', message: `The host has no room for what the guest writes. ${waits}` }
    : {
        code: 'disk_error',
        message: `The host could not ${operation === 'read' ? 'read' : 'write'} the disk: ${untrustedText(reason)}. ${waits}`,
      };
}
