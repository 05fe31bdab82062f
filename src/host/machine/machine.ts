/**
 * One QEMU process with its monitor, guest agent and console: launched here, or adopted after our own death.
 *
 *   launch ──▶ booting ──guest answers──▶ up ──RESET──▶ booting …
 *                 └──────────SHUTDOWN──────┴──▶ off        (and from any: gone, when the process ends)
 *
 * The record on disk is always at least as far as the process: it is written before what it tells of is done.
 */
import { join } from 'node:path';
import type { Reason } from '../../agent-api/types.ts';
import type { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import type { Log } from '../../lib/log.ts';
import { untrustedText } from '../../lib/untrusted-text.ts';
import { GuestAgent } from '../guest/guest-agent.ts';
import { LoginWatch } from '../keys/login-watch.ts';
import type { LazyOverlay } from '../overlay/lazy-overlay.ts';
import { OverlayExport } from '../overlay/overlay-export.ts';
import { QmpClient } from '../qmp/qmp-client.ts';
import type { QmpEvent, QmpEventData } from '../qmp/types.ts';
import { isAlive, killProcess, waitForExit } from '../vm/process-identity.ts';
import { vmSockets } from '../vm/qemu-command.ts';
import { findMonitor, onVmExit } from '../vm/qemu-process.ts';
import type { VmUser } from '../vm/uid.ts';
import { ConsoleLog } from './console-log.ts';
import { MachineDisk } from './machine-disk.ts';
import { type VmFolder, type VmRecord, writeRecord } from './record.ts';
import { Stall } from './stall.ts';

const QUIT_MS = 5_000;
/** To end a VM is worse than to wait: a host that is short of memory, or was asleep, may take so long. */
const MONITOR_MS = 60_000;
/** It may wait for a read to be answered, and tries to reach us only every 16 s after we were away for long. */
const LAZY_MONITOR_MS = 120_000;
const AGENT_SILENT: Reason = {
  code: 'guest_agent_silent',
  message:
    "The guest's agent does not answer, or answers what no agent does: commands, metrics and changed SSH keys wait. Restart the VM if it stays so.",
};

export class Machine {
  readonly folder: VmFolder;
  readonly qmp: QmpClient;
  readonly agent: GuestAgent;
  readonly disk: MachineDisk;
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

  constructor(options: {
    folder: VmFolder;
    record: VmRecord;
    qmp: QmpClient;
    log: Log;
    /** Called whenever the view has changed by itself. */
    changed: () => void;
    lazy: LazyOverlay | null;
    /** The VM's user; null: ourselves. */
    owner: VmUser | null;
    /** An earlier agent's. */
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
      // A guest that stood still did not answer for that.
      this.agent.forgive();
      options.changed();
    };
    this.#stall = new Stall({ resume, changed, log: options.log });
    const sockets = vmSockets(options.folder.runtime);
    this.agent = new GuestAgent(sockets.agent, options.changed);
    this.disk = new MachineDisk(options.qmp);
    const { owner } = options;
    const socket_path = join(options.folder.runtime, owner ? 'disk/sock' : 'disk.sock');
    this.exported = new OverlayExport({ qmp: options.qmp, socket_path, owner });
    this.#adopted = options.adopted === true;
    this.#given = this.#adopted || options.record.resuming ? null : [];
    this.logins = new LoginWatch(this.agent, this.#adopted);
    this.#console = new ConsoleLog(sockets.console, options.folder.console_log);
    this.qmp.onEvent((event) => this.#hear(event));
    onVmExit(options.record.identity, options.qmp, () => {
      this.#gone = true;
      this.#booted();
      this.#disturbed();
    });
  }

  /**
   * Takes over a machine that an earlier agent left. null when its process is gone, or does not speak with us (it is
   * ended then). Its view is `booting` until the guest was found to answer, or `off`. Rejects when its state cannot be
   * found, also while it is paused, and lets go of it.
   */
  static async adopt(options: {
    folder: VmFolder;
    record: VmRecord;
    log: Log;
    changed: () => void;
    lazy: LazyOverlay | null;
    owner: VmUser | null;
    /** How long it may be silent; 60 s by default, 120 s with `lazy`. */
    patience_ms?: number;
  }): Promise<Machine | null> {
    const { record, folder, log } = options;
    if (!isAlive(record.identity)) return null;
    const qmp = await findMonitor(record.identity, {
      path: vmSockets(folder.runtime).qmp,
      patience_ms: options.patience_ms ?? (options.lazy ? LAZY_MONITOR_MS : MONITOR_MS),
    });
    if (!(qmp instanceof QmpClient)) {
      log.error(
        { err: qmp, instance_id: record.instance_id },
        'a VM does not answer its monitor and is ended',
      );
      killProcess(record.identity, 'SIGKILL');
      await waitForExit(record.identity, QUIT_MS);
      return null;
    }
    const machine = new Machine({ ...options, qmp, adopted: true });
    try {
      await machine.#settle();
    } catch (error) {
      // The monitor takes one client at a time: the next to ask would be kept waiting by this one.
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
  /** The process has ended, or its monitor is lost: nothing of it can be used. */
  get gone(): boolean {
    return this.#gone;
  }
  /** Off because the guest shut itself down, its file systems in order. */
  get cleanly_off(): boolean {
    return this.#cleanly_off;
  }
  get panicked(): boolean {
    return this.#panicked;
  }
  /** The guest stands still because it has read what is damaged in the store. */
  get damage(): SegmentCorruptError | null {
    return this.#damage;
  }
  get lazy(): LazyOverlay | null {
    return this.#lazy;
  }
  /** Its guest runs no further, for a reason of its own. */
  get broken(): boolean {
    return this.#panicked || this.#damage !== null;
  }
  /** Why the guest waits for this host's disk; null: it does not. */
  get stall(): Reason | null {
    return this.#stall.reason;
  }
  /** What its users should know while it runs: that it waits for this host's disk, or does not answer; null: all is well. */
  get trouble(): Reason | null {
    return this.stall ?? (this.agent.is_silent ? AGENT_SILENT : null);
  }
  /** How often the machine was reset, by the guest or by us. */
  get resets(): number {
    return this.#resets;
  }

  /** The guest has been up for longer than we know it, or is up: somebody may be logged in. */
  get may_be_connected(): boolean {
    if (this.#record.resuming) return true;
    return this.#view === 'up' || this.#may_have_been_up;
  }

  /** What an earlier agent left may have been up for long: that we do not hear it is no reason to end it. */
  get survives_silence(): boolean {
    return this.#may_have_been_up && !this.#record.resuming && !this.#record.template;
  }

  get #may_have_been_up(): boolean {
    return this.#adopted && this.#resets === 0;
  }

  /** Lines of authorized_keys that its guest began with, or was suspended with; null: not known, or it was reset or sent others since. */
  get given_keys(): readonly string[] | null {
    return this.#given;
  }

  /** Void if it was reset since `resets`. */
  noteGiven(authorized_keys: readonly string[] | null, resets: number): void {
    if (resets === this.#resets) this.#given = authorized_keys;
  }

  /** Aborts when the machine is reset again, goes off, panics or ends. */
  bootEnded(resets: number): AbortSignal {
    if (this.#resets !== resets || this.#view === 'off' || this.broken || this.#gone)
      return AbortSignal.abort();
    return this.#bootEnded.signal;
  }

  async update(change: Partial<VmRecord>): Promise<void> {
    this.#record = { ...this.#record, ...change };
    await writeRecord(this.folder, this.#record);
  }

  /** The guest was found to answer; void if it was reset since `resets`. */
  markUp(resets: number): void {
    if (this.#view !== 'booting' || resets !== this.#resets) return;
    this.#view = 'up';
    this.#booted();
  }

  /** Calls `effect` when the guest is up, or the process has ended. */
  onceBooted(effect: () => void): void {
    if (this.#view === 'booting' && !this.#gone) this.#booted = effect;
    else effect();
  }

  /** Bytes that the bitmap marks since the last finished flush; null while it cannot be known. */
  async markedBytes(): Promise<number | null> {
    return this.#record.full_compare ? null : this.disk.markedBytes();
  }

  /** Bytes that a running guest has written since the last finished flush, without what its thaw has written. */
  async dirtyBytes(): Promise<number | null> {
    return (await this.disk.isUntouched()) ? 0 : this.markedBytes();
  }

  /** The overlay is whole and QEMU reads nothing of us any more. */
  async noteFilled(): Promise<void> {
    const lazy = this.#lazy;
    this.#lazy = null;
    await this.update({ lazy: null });
    // Not waited for: the filling itself says this, and closing waits for its end.
    void lazy?.close();
  }

  /** Lets a machine go on that a failed disk request has stopped; the request is tried again. */
  async resumeIfStalled(): Promise<void> {
    if (this.#gone) return;
    const { status } = await this.qmp.execute('query-status', undefined);
    // Halted by us, now or meanwhile, it keeps the status `io-error`, and its disk is to stay quiet.
    if (this.#halting || this.#view === 'off') return;
    if (status === 'io-error') await this.qmp.execute('cont', undefined);
  }

  /** The guest's part is over: it runs no further, its disk is quiet. */
  async halt(): Promise<void> {
    // QEMU waits for reads under way before it stops.
    this.#lazy?.refuseReads();
    // From here on: a `cont` that is sent after the `stop` would be carried out after it.
    this.#halting = true;
    try {
      await this.qmp.execute('stop', undefined);
      this.#view = 'off';
    } finally {
      this.#halting = false;
    }
  }

  /** Ends the process; what is in the overlay stays. Resolves when it is gone. */
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

  /** Lets go of the process without ending it. */
  release(): void {
    this.#stall.close();
    void this.#lazy?.close();
    this.agent.close();
    this.#console.close();
    this.qmp.close();
  }

  #hear(event: QmpEvent): void {
    switch (event.event) {
      case 'RESET':
        // QEMU resets once by itself as it is made, before the guest's first instruction.
        if (!this.#record.released) return;
        this.#resets += 1;
        this.#given = null;
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
        if (event.data.action === 'stop') this.#hearStop(event.data);
        return;
      default:
        return;
    }
  }

  #hearStop(failed: QmpEventData['BLOCK_IO_ERROR']): void {
    // Each request that fails tells of itself; the log tells once of what may be thousands.
    if (this.stall === null)
      this.#log.error(
        { instance_id: this.#record.instance_id, reason: untrustedText(failed.reason) },
        'a disk request failed; the VM waits',
      );
    this.#damage = failed.operation === 'read' ? (this.#lazy?.corrupt ?? null) : null;
    if (this.#damage) this.#disturbed();
    else this.#stall.hear(failed);
  }

  #disturbed(): void {
    this.#bootEnded.abort(new Error('the machine was reset, went off, or ended'));
    this.#bootEnded = new AbortController();
    this.#changed();
  }

  /** Finds an adopted machine's state and frees it of what an agent's death may have left. */
  async #settle(): Promise<void> {
    const { status } = await this.qmp.execute('query-status', undefined);
    if (status === 'shutdown') {
      this.#view = 'off';
      this.#cleanly_off = true;
    }
    if (status === 'guest-panicked') this.#panicked = true;
    const { suspending, resuming, released } = this.#record;
    // Paused by an agent that had begun a forced stop; for a suspend whoever adopts it sees to it.
    if (status === 'paused' && !suspending && !resuming) this.#view = 'off';
    if (status === 'paused' && resuming && released) await this.qmp.execute('cont', undefined);
    await this.resumeIfStalled();
    // Its record says that the guest was let go; the agent died just before it was.
    if (status === 'prelaunch' && this.#record.released) await this.qmp.execute('cont', undefined);
  }
}
