/**
 * Renews this host's lease: the time for which the host may run VMs without hearing from the control plane. A host that
 * is the only one needs no lease.
 *
 *   none ◀──host is alone──▶ held ──not renewed in time──▶ over ──renewed, assignments read──▶ held
 *   none ──credential refused──▶ held for the default lease since it was last accepted, or over
 *
 * - While the lease is over no VM runs here: fencer and agent each pause the VMs, independently.
 * - A lease counts from the sending of its renewal. It is promised to the control plane only once a fencer runs.
 * - Once a lease that was over is renewed, the assignments are read first. Then VMs that are still assigned are
 *   resumed, and the others are ended.
 * - A refused host may have been removed, and its VMs started elsewhere: it needs a lease even if it had none.
 */
import type { Paths } from '../../config/paths.ts';
import {
  type ControlPlaneClient,
  ControlPlaneUnavailable,
  CredentialRefused,
} from '../../protocol/client.ts';
import { type Assignment, DEFAULT_LEASE_MS } from '../../protocol/types.ts';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import { bootMs, type FoundVm } from '../qemu/qemu-process.ts';
import {
  fenceVms,
  leftMs,
  readLease,
  releaseVms,
  removeLease,
  runningFencer,
  wasFenced,
  writeLease,
} from './fencer.ts';

const RENEW_MS = 5_000;
const RETRY_MS = 500;
const FENCER_START_MS = 10_000;
const LOOK_MS = 100;
/** How often the log repeats that the host waits. */
const WAITING_EVERY_MS = 60_000;

/** The lease is over: start nothing that another host might be doing. */
export class LeaseOverError extends Error {
  override name = 'LeaseOverError';
}

export interface HostLeaseOptions {
  readonly client: Pick<ControlPlaneClient, 'renewLease' | 'poll' | 'control_planes'>;
  readonly paths: Pick<Paths, 'lease' | 'fencer' | 'fenced' | 'vms'>;
  readonly log: Log;
  /** Starts the fencer's process, which outlives this one. */
  readonly startFencer: () => void;
}

export class HostLease {
  readonly #options: HostLeaseOptions;
  /** On the boot clock; null: there is no lease. */
  #until_ms: number | null = null;
  /** The length that the control plane wants. */
  #wanted_ms: number | null = null;
  #over = false;
  /** When the last accepted renewal was sent, on the boot clock; null: none since this agent started. */
  #accepted_ms: number | null = null;
  /** The last logged reason of a failed renewal. */
  #logged_reason: string | null = null;
  /** When a renewal last succeeded, on the boot clock. A quarter of a lease later the log says that the host waits. */
  #answered_ms = bootMs();
  #say_again_ms = 0;
  readonly #held_again = new Signal();

  constructor(options: HostLeaseOptions) {
    this.#options = options;
    // An earlier agent may have ended between its renewal and the resume: VMs are still paused under a valid lease.
    if (wasFenced(options.paths)) this.#over = true;
    const lease = readLease(options.paths.lease);
    if (lease === null) return;
    // An earlier agent's lease is still valid.
    this.#until_ms = bootMs() + leftMs(lease);
    this.#wanted_ms = lease.lease_ms > 0 ? lease.lease_ms : null;
    this.#checkClock();
  }

  /** VMs may run here. */
  get isHeld(): boolean {
    return !this.#over && (this.#until_ms === null || bootMs() < this.#until_ms);
  }

  /** How long VMs may run without the control plane, in words for the log. */
  get outlook(): string {
    if (this.#until_ms === null) return 'VMs run on';
    const left_ms = this.#until_ms - bootMs();
    if (this.#over || left_ms <= 0) return 'VMs are paused until it renews the lease of this host';
    return `VMs run on, and are paused in ${Math.ceil(left_ms / 1000)} s unless it renews the lease of this host`;
  }

  /** @throws LeaseOverError */
  require(): void {
    if (!this.isHeld)
      throw new LeaseOverError("the host's lease is over; the control plane is away, or refuses the host");
  }

  /** Resolves once VMs may run here, or `signal` aborts. */
  async whenHeld(signal: AbortSignal): Promise<void> {
    if (!this.isHeld) this.#checkClock();
    while (!this.isHeld && !signal.aborted) await this.#held_again.wait({ signal });
  }

  /** Renews until `signal` aborts. The lease stays then, for the next agent and the fencer. */
  async run(signal: AbortSignal): Promise<void> {
    const clock = setInterval(() => this.#checkClock(), LOOK_MS);
    try {
      while (!signal.aborted) {
        const renewed = await this.#renew(signal);
        const rest_ms = Math.min(RENEW_MS, (this.#wanted_ms ?? RENEW_MS * 8) / 8);
        await pause(renewed ? rest_ms : Math.min(RETRY_MS, rest_ms), signal);
      }
    } finally {
      clearInterval(clock);
    }
  }

  /** The first thing that runs after this process was stopped for a while. */
  #checkClock(): void {
    if (this.#until_ms === null || bootMs() < this.#until_ms) return;
    if (!this.#over) {
      this.#over = true;
      this.#options.log.error(
        'the lease could not be renewed in time: VMs are paused until the control plane renews it',
      );
    }
    fenceVms(this.#options.paths);
  }

  async #renew(signal: AbortSignal): Promise<boolean> {
    const { client } = this.#options;
    try {
      const kept_ms = this.#wanted_ms !== null && runningFencer(this.#options.paths) ? this.#wanted_ms : null;
      const sent_ms = bootMs();
      // Each control plane is tried within the lease.
      const tries = client.control_planes + 2;
      const bound_ms = Math.min(RENEW_MS, (this.#wanted_ms ?? RENEW_MS * tries) / tries);
      const { lease_ms } = await client.renewLease({ kept_ms }, bound_ms, signal);
      this.#accepted_ms = sent_ms;
      if (lease_ms === null) await this.#dropLease(signal);
      else await this.#keep(sent_ms, lease_ms, kept_ms, signal);
      this.#logged_reason = null;
      this.#answered_ms = bootMs();
      this.#say_again_ms = 0;
      return lease_ms === null || kept_ms === lease_ms;
    } catch (error) {
      if (signal.aborted) return false;
      const refused = error instanceof CredentialRefused;
      const problem = await (refused ? this.#keepRefused(signal) : undefined)?.catch(
        (cause: unknown) => cause,
      );
      this.#logFailure(problem ?? error);
      return false;
    }
  }

  /** The poll for assignments logs that the control plane is away. Other failures are logged here, once: in the end they pause all VMs. */
  #logFailure(error: unknown): void {
    const { log } = this.#options;
    const reason = messageOf(error);
    const away = error instanceof ControlPlaneUnavailable;
    const waits = bootMs() - this.#answered_ms >= (this.#wanted_ms ?? RENEW_MS * 8) / 4;
    if (away && waits && bootMs() >= this.#say_again_ms) {
      this.#say_again_ms = bootMs() + WAITING_EVERY_MS;
      log.warn({ reason }, `waiting for the control plane; ${this.outlook}`);
      return;
    }
    if (away || this.#logged_reason === reason) log.debug({ reason }, 'the lease was not renewed');
    else if (error instanceof CredentialRefused)
      log.error({ reason }, `the control plane refuses the credential of this host; ${this.outlook}`);
    else log.warn({ err: error }, 'the lease cannot be renewed');
    if (!away) this.#logged_reason = reason;
  }

  async #keep(sent_ms: number, lease_ms: number, kept_ms: number | null, signal: AbortSignal): Promise<void> {
    const { paths, log } = this.#options;
    this.#wanted_ms = lease_ms;
    // Never longer than the promised length.
    const until_ms = sent_ms + Math.min(lease_ms, kept_ms ?? lease_ms);
    writeLease(paths.lease, until_ms, lease_ms);
    this.#until_ms = until_ms;
    if (!runningFencer(paths))
      log.info({ lease_ms }, 'this host is one of several: a fencer watches its lease');
    await this.#ensureFencer(signal);
    if (this.#over || wasFenced(paths)) await this.#release(signal);
  }

  async #ensureFencer(signal: AbortSignal): Promise<void> {
    const { paths, startFencer } = this.#options;
    if (runningFencer(paths)) return;
    startFencer();
    const given_up = AbortSignal.any([signal, AbortSignal.timeout(FENCER_START_MS)]);
    while (!runningFencer(paths) && (await pause(LOOK_MS, given_up)));
  }

  /** A host without a lease is refused: its VMs run on for the default lease after it was last accepted. */
  async #keepRefused(signal: AbortSignal): Promise<void> {
    const { paths } = this.#options;
    // An agent that was never accepted does not know for how long the host has been refused.
    const last_ms = this.#accepted_ms === null ? bootMs() : this.#accepted_ms + DEFAULT_LEASE_MS;
    this.#until_ms ??= last_ms;
    this.#wanted_ms ??= DEFAULT_LEASE_MS;
    this.#checkClock();
    if (readLease(paths.lease) === null) writeLease(paths.lease, this.#until_ms, this.#wanted_ms);
    await this.#ensureFencer(signal);
  }

  /** This host is alone: it needs no lease. */
  async #dropLease(signal: AbortSignal): Promise<void> {
    const { paths } = this.#options;
    if (this.#until_ms === null && !this.#over && !wasFenced(paths)) return;
    removeLease(paths.lease);
    this.#wanted_ms = null;
    this.#until_ms = null;
    if (this.#over || wasFenced(paths)) await this.#release(signal);
  }

  /** After a renewal: resumes the VMs that are still assigned, and ends the others. */
  async #release(signal: AbortSignal): Promise<void> {
    const { client, paths, log } = this.#options;
    const { assignments } = await client.poll({ seen: null }, signal);
    // The poll took part of the lease.
    if (this.#until_ms !== null && bootMs() >= this.#until_ms) return;
    const { resumed, ended } = releaseVms(paths, (vm) => isWanted(assignments, vm));
    const ids = (vms: readonly FoundVm[]) => vms.map(({ instance_id }) => instance_id);
    log.warn(
      { resumed: ids(resumed), ended: ids(ended) },
      'the lease is renewed: paused VMs were resumed or ended',
    );
    this.#over = false;
    this.#held_again.notify();
  }
}

/** A VM that is being suspended runs until its memory is durable. */
function isWanted(assignments: readonly Assignment[], { instance_id, vm_id }: FoundVm): boolean {
  const wanted = assignments.find((each) => each.instance_id === instance_id);
  return wanted?.vm_id === vm_id && ['running', 'suspended', 'stopped'].includes(wanted.desired);
}
