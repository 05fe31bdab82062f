/**
 * This host's lease as the agent keeps it.
 *
 *   none ◀──alone──▶ held ──not renewed in time──▶ over ──renewed, assignments read anew──▶ held
 *
 * While it is over no VM runs here: the fencer has paused them, and so has this, each without the other. A lease counts
 * from the sending of the renewal that was answered. It is promised to the control plane only once a fencer watches.
 * After a renewal of a lease that was over, the assignments are read before any VM goes on: those that were given up
 * meanwhile are ended.
 */
import { type ControlPlaneClient, ControlPlaneUnavailable } from '../../agent-api/client.ts';
import type { Assignment } from '../../agent-api/types.ts';
import type { Paths } from '../../config/paths.ts';
import { pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';
import { Signal } from '../../lib/signal.ts';
import { bootMs } from '../vm/boot-clock.ts';
import type { FoundVm } from '../vm/qemu-process.ts';
import { fenceVms, releaseVms, wasFenced } from './fence.ts';
import { runningFencer } from './fencer.ts';
import { leftMs, readLease, removeLease, writeLease } from './lease-file.ts';

const RENEW_MS = 5_000;
const RETRY_MS = 500;
const FENCER_START_MS = 10_000;
const LOOK_MS = 100;

/** Past it nothing may be begun here that another host might be doing. */
export class LeaseOverError extends Error {
  override name = 'LeaseOverError';
}

export interface HostLeaseOptions {
  readonly client: ControlPlaneClient;
  readonly paths: Pick<Paths, 'lease' | 'fencer' | 'fenced' | 'vms'>;
  readonly log: Log;
  /** Starts the process of `runFencer`, which outlives us. */
  readonly startFencer: () => void;
}

export class HostLease {
  readonly #options: HostLeaseOptions;
  /** On the boot clock; null: no lease is kept. */
  #until_ms: number | null = null;
  /** What the control plane wants kept. */
  #wanted_ms: number | null = null;
  #over = false;
  /** What was said last of why it is not renewed. */
  #told: string | null = null;
  readonly #held_again = new Signal();

  constructor(options: HostLeaseOptions) {
    this.#options = options;
    // The lease may be renewed and its VMs still be paused: whoever renewed it ended before it let them go on.
    if (wasFenced(options.paths)) this.#over = true;
    const lease = readLease(options.paths.lease);
    if (lease === null) return;
    // From before: this agent is not the first. It keeps on as long as it lasts.
    this.#until_ms = bootMs() + leftMs(lease);
    this.#wanted_ms = lease.lease_ms > 0 ? lease.lease_ms : null;
    this.#lookAtTheClock();
  }

  /** VMs may run here. */
  get isHeld(): boolean {
    return !this.#over && (this.#until_ms === null || bootMs() < this.#until_ms);
  }

  /** @throws LeaseOverError */
  require(): void {
    if (!this.isHeld) throw new LeaseOverError("the host's lease is over; the control plane is away");
  }

  /** Resolves once VMs may run here, or `signal` aborts. */
  async whenHeld(signal: AbortSignal): Promise<void> {
    if (!this.isHeld) this.#lookAtTheClock();
    while (!this.isHeld && !signal.aborted) await this.#held_again.wait({ signal });
  }

  /** Renews until `signal` aborts. The lease is left as it is then: the next agent, or the fencer, goes on from it. */
  async run(signal: AbortSignal): Promise<void> {
    const clock = setInterval(() => this.#lookAtTheClock(), LOOK_MS);
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

  /** Wakes late when this process was stopped: then it is the first thing that happens. */
  #lookAtTheClock(): void {
    if (this.#until_ms === null || bootMs() < this.#until_ms) return;
    if (!this.#over) {
      this.#over = true;
      this.#options.log.error('the lease could not be renewed in time: VMs are paused');
    }
    fenceVms(this.#options.paths);
  }

  async #renew(signal: AbortSignal): Promise<boolean> {
    const { client } = this.#options;
    try {
      const kept_ms = this.#wanted_ms !== null && runningFencer(this.#options.paths) ? this.#wanted_ms : null;
      const sent_ms = bootMs();
      const bound_ms = Math.min(RENEW_MS, (this.#wanted_ms ?? RENEW_MS * 3) / 3);
      const { lease_ms } = await client.renewLease({ kept_ms }, bound_ms, signal);
      if (lease_ms === null) await this.#doWithout(signal);
      else await this.#keep(sent_ms, lease_ms, kept_ms, signal);
      this.#told = null;
      return lease_ms === null || kept_ms === lease_ms;
    } catch (error) {
      if (!signal.aborted) this.#tell(error);
      return false;
    }
  }

  /** A control plane that is away is told of by who polls it. All else is said here, once: at last it pauses all VMs. */
  #tell(error: unknown): void {
    const { log } = this.#options;
    const reason = messageOf(error);
    const away = error instanceof ControlPlaneUnavailable;
    if (away || this.#told === reason) log.debug({ reason }, 'the lease was not renewed');
    else log.warn({ err: error }, 'the lease cannot be renewed');
    if (!away) this.#told = reason;
  }

  async #keep(sent_ms: number, lease_ms: number, kept_ms: number | null, signal: AbortSignal): Promise<void> {
    const { paths, log, startFencer } = this.#options;
    this.#wanted_ms = lease_ms;
    // Never longer than what was promised.
    const until_ms = sent_ms + Math.min(lease_ms, kept_ms ?? lease_ms);
    writeLease(paths.lease, until_ms, lease_ms);
    this.#until_ms = until_ms;
    if (!runningFencer(paths)) {
      log.info({ lease_ms }, 'this host is one of several: a fencer watches its lease');
      startFencer();
      const given_up = AbortSignal.any([signal, AbortSignal.timeout(FENCER_START_MS)]);
      while (!runningFencer(paths) && (await pause(LOOK_MS, given_up)));
    }
    if (this.#over || wasFenced(paths)) await this.#release(signal);
  }

  /** This host is alone: nothing expires. */
  async #doWithout(signal: AbortSignal): Promise<void> {
    const { paths } = this.#options;
    if (this.#until_ms === null && !this.#over && !wasFenced(paths)) return;
    removeLease(paths.lease);
    this.#wanted_ms = null;
    this.#until_ms = null;
    if (this.#over || wasFenced(paths)) await this.#release(signal);
  }

  /** The control plane has heard of us again: what it wants now is what may go on. */
  async #release(signal: AbortSignal): Promise<void> {
    const { client, paths, log } = this.#options;
    const { assignments } = await client.poll({ seen: null }, signal);
    // That took time of the lease.
    if (this.#until_ms !== null && bootMs() >= this.#until_ms) return;
    const { resumed, ended } = releaseVms(paths, (vm) => isWanted(assignments, vm));
    const ids = (vms: readonly FoundVm[]) => vms.map(({ instance_id }) => instance_id);
    log.warn(
      { resumed: ids(resumed), ended: ids(ended) },
      'the lease is renewed: paused VMs go on, or are over',
    );
    this.#over = false;
    this.#held_again.notify();
  }
}

/** One that is being suspended goes on until its memory is durable. */
function isWanted(assignments: readonly Assignment[], { instance_id, vm_id }: FoundVm): boolean {
  const wanted = assignments.find((each) => each.instance_id === instance_id);
  return wanted?.vm_id === vm_id && ['running', 'suspended', 'stopped'].includes(wanted.desired);
}
