/**
 * The agent of one host: polls the control plane for assignments, runs a reconciler for each VM, and sends heartbeats.
 * The agent connects to the control plane, never the other way round. When the agent ends, its VMs run on, and the next
 * agent adopts them.
 */
import { cpus, totalmem } from 'node:os';
import { ObjectStoreUnavailableError } from '../object-store/object-store.ts';
import { BATCHES, BatchSender } from '../protocol/batches.ts';
import { type DiskReport, type HostFacts, HostImage, IMAGES_MAX } from '../protocol/host-types.ts';
import { conforms } from '../protocol/schemas.ts';
import type { PollResponse } from '../protocol/types.ts';
import { messageOf } from '../shared/errors.ts';
import { type InstanceId, isId } from '../shared/ids.ts';
import { backoffMs, pause } from '../shared/retry.ts';
import { untrustedText } from '../shared/untrusted-text.ts';
import { CallServer } from './calls/call-server.ts';
import { VmMeters } from './calls/vm-meters.ts';
import { evictStaleDisks, reportUnknownVm } from './evict-stale-disks.ts';
import { HostExecs } from './execs/host-execs.ts';
import type { HostContext } from './host-context.ts';
import { listHostImages } from './images/host-images.ts';
import { findOrphans, isSameProcess, killProcess, waitForExit } from './qemu/qemu-process.ts';
import { Reconciler, rootUse } from './reconciler/reconciler.ts';
import { listVmFolders, readRecord, vmFolder } from './vm/record.ts';

const HEARTBEAT_MS = 5_000;
const STORE_CHECK_MS = 30_000;
/** How long the first heartbeat waits for the first check of the object store. */
const FIRST_CHECK_MS = 2_000;
/** Between two attempts to apply egress policies. */
const POLICY_RETRY_MS = 1_000;
const UPKEEP_EVERY = 12;
const ROOT_USE_EVERY = 12;
/** How long a heartbeat waits for one guest or QEMU. */
const GUEST_MS = 2_000;
const ORPHAN_EXIT_MS = 5_000;
const EVICT_EVERY_MS = 6 * 3_600_000;

export interface AgentFacts {
  readonly accelerator_reason: string;
  /** What hosts share that can resume each other's VMs; null: not known. */
  readonly machine: string | null;
  /** Replaces the credential of this host, where it has one of its own. */
  readonly rotateCredential: () => Promise<void>;
  /** Isolates the guests' network; repeated. Returns the problem, if any. */
  readonly isolate: () => Promise<string | null>;
}

export class Agent {
  readonly #context: HostContext;
  readonly #facts: AgentFacts;
  readonly #execs: HostExecs;
  readonly #heartbeat: BatchSender<typeof BATCHES.heartbeat.item>;
  readonly #runners = new Map<InstanceId, { runner: Reconciler; done: Promise<void> }>();
  #store_problem: string | null = 'not known yet';
  /** The last log line said that the store cannot be used. */
  #store_problem_logged = false;
  readonly #store_checked = Promise.withResolvers<void>();
  #isolation_problem: string | null = null;
  #evict_after_ms = 0;

  constructor(context: HostContext, facts: AgentFacts) {
    this.#context = context;
    this.#facts = facts;
    this.#heartbeat = new BatchSender(BATCHES.heartbeat, context.log);
    this.#execs = new HostExecs(context, () =>
      [...this.#runners.values()].map(({ runner }) => ({
        instance_id: runner.instance_id,
        machine: runner.machineOf(),
      })),
    );
  }

  /** Runs until `signal` aborts, then disconnects from every VM. */
  async run(signal: AbortSignal): Promise<void> {
    // Adopt before the first poll: a guest may be waiting for its thaw.
    this.#isolation_problem = await this.#facts.isolate();
    if (this.#isolation_problem !== null) {
      this.#context.log.warn({ problem: this.#isolation_problem }, 'guests are not fully isolated');
    }
    const renewing = this.#context.lease.run(signal);
    // Paused VMs do not answer. Renewing the lease ends those that the control plane has given up.
    await this.#context.lease.whenHeld(signal);
    if (!signal.aborted) await this.#adoptAll();
    const runners = () => [...this.#runners.values()].map(({ runner }) => runner);
    const meters = new VmMeters(runners, this.#context);
    const execs = this.#execs;
    const calls = new CallServer(this.#context, (id) => this.#runners.get(id)?.runner, { meters, execs });
    await Promise.all([
      ...[renewing, this.#storeChecks(signal), this.#heartbeats(signal), this.#polls(signal)],
      ...[calls.run(signal), meters.run(signal), this.#context.images.run(signal)],
      ...[this.#context.templates.run(signal), this.#context.egress.run(signal), execs.run(signal)],
    ]);
    for (const { runner } of this.#runners.values()) runner.close();
    await Promise.all([...this.#runners.values()].map(({ done }) => done));
  }

  async #adoptAll(): Promise<void> {
    await this.#endOrphans();
    for (const instance_id of await listVmFolders(this.#context.paths.vms)) this.#keep(instance_id);
  }

  #keep(instance_id: InstanceId): Reconciler {
    const present = this.#runners.get(instance_id);
    if (present) return present.runner;
    const runner = new Reconciler(this.#context, instance_id, (closing) =>
      this.#execs.reportEnds(instance_id, closing),
    );
    const done = runner
      .run()
      .catch((error: unknown) => this.#context.log.error({ err: error, instance_id }, 'a runner failed'))
      .finally(() => {
        this.#runners.delete(instance_id);
        if (runner.isUnassigned) this.#reportUnknownVm(instance_id);
      });
    this.#runners.set(instance_id, { runner, done });
    return runner;
  }

  /** Ends orphans: QEMUs of this data folder that no record names. Their launch was cut off, or their folder is gone. */
  async #endOrphans(): Promise<void> {
    for (const found of findOrphans(this.#context.paths.vms)) {
      const { instance_id, identity } = found;
      const record = isId('inst', instance_id)
        ? await readRecord(vmFolder(this.#context.paths.vms, instance_id))
        : null;
      if (record && isSameProcess(record.identity, identity)) continue;
      this.#context.log.error({ instance_id, pid: identity.pid }, 'a VM without a record is ended');
      killProcess(identity, 'SIGKILL');
      await waitForExit(identity, ORPHAN_EXIT_MS);
    }
  }

  async #polls(signal: AbortSignal): Promise<void> {
    let seen: string | null = null;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const answer = await this.#context.client.poll({ seen }, signal);
        failures = 0;
        if (answer.etag !== seen) seen = (await this.#apply(answer)) ? answer.etag : null;
        this.#evictStale();
      } catch (error) {
        if (signal.aborted) return;
        this.#context.log.debug({ reason: messageOf(error) }, 'the assignments could not be read');
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
  }

  /** Instances may have been deleted while this host was away. */
  #evictStale(): void {
    const { log } = this.#context;
    if (performance.now() < this.#evict_after_ms) return;
    this.#evict_after_ms = performance.now() + EVICT_EVERY_MS;
    evictStaleDisks(this.#context, (id) => this.#runners.has(id)).catch((error: unknown) =>
      log.warn({ err: error }, 'stale disks could not be evicted'),
    );
  }

  /** The database may have been set back to a time before the VM that has just ended here. */
  #reportUnknownVm(instance_id: InstanceId): void {
    reportUnknownVm(this.#context, instance_id).catch((error: unknown) => {
      this.#context.log.debug({ instance_id, reason: messageOf(error) }, 'the end of a VM is reported later');
      this.#evict_after_ms = 0;
    });
  }

  /** False: it must be repeated. */
  async #apply({ assignments }: PollResponse): Promise<boolean> {
    const { egress, log } = this.#context;
    const enforced = await egress.apply(assignments).then(
      () => true,
      (error: unknown) => {
        log.error({ err: error }, 'the egress policies could not be applied');
        return false;
      },
    );
    const assigned = new Set<InstanceId>();
    for (const assignment of assignments) {
      assigned.add(assignment.instance_id);
      this.#keep(assignment.instance_id).assign(assignment);
    }
    for (const [instance_id, { runner }] of this.#runners) {
      if (!assigned.has(instance_id)) runner.assign(null);
    }
    if (!enforced) await pause(POLICY_RETRY_MS);
    return enforced;
  }

  async #heartbeats(signal: AbortSignal): Promise<void> {
    await Promise.race([this.#store_checked.promise, pause(FIRST_CHECK_MS, signal)]);
    for (let beat = 0; !signal.aborted; beat++) {
      if (beat % UPKEEP_EVERY === UPKEEP_EVERY - 1) await this.#upkeep();
      try {
        const facts = await this.#describe();
        let rotates = false;
        await this.#heartbeat.send(await this.#disks(beat % ROOT_USE_EVERY === ROOT_USE_EVERY - 1), {
          post: async (disks) => {
            const { rotate } = await this.#context.client.heartbeat({ facts, disks });
            rotates ||= rotate === true;
          },
        });
        if (rotates) await this.#facts.rotateCredential();
      } catch (error) {
        this.#context.log.debug({ reason: messageOf(error) }, 'a heartbeat failed');
      }
      await pause(HEARTBEAT_MS, signal);
    }
  }

  /** Restores the egress rules, which others may have removed, bounds QEMU's logs, and reports logins. */
  async #upkeep(): Promise<void> {
    this.#isolation_problem = await this.#facts.isolate();
    await this.#context.egress
      .mend()
      .catch((error: unknown) =>
        this.#context.log.error({ err: error }, 'the egress policies could not be applied again'),
      );
    for (const [instance_id, { runner }] of this.#runners) {
      try {
        runner.upkeep();
      } catch (error) {
        // A full disk, for example. The others still get their upkeep.
        this.#context.log.warn({ err: error, instance_id }, "a VM's upkeep failed");
      }
    }
  }

  /** In parallel to the heartbeats: a store that does not answer must delay neither them nor the end. */
  async #storeChecks(signal: AbortSignal): Promise<void> {
    const ended = new Promise<void>((resolve) =>
      signal.addEventListener('abort', () => resolve(), { once: true }),
    );
    const checks = async () => {
      while (!signal.aborted) {
        await this.#checkStore();
        this.#store_checked.resolve();
        await pause(this.#store_problem === null ? STORE_CHECK_MS : HEARTBEAT_MS, signal);
      }
    };
    await Promise.race([checks(), ended]);
  }

  async #checkStore(): Promise<void> {
    const { store, log } = this.#context;
    const before = this.#store_problem;
    try {
      await store.check();
      this.#store_problem = null;
      if (this.#store_problem_logged) log.info({ store: store.description }, 'the object store works again');
      this.#store_problem_logged = false;
    } catch (error) {
      // `/readyz` shows the reason without authentication. The store's location goes to the log only.
      this.#store_problem = error instanceof ObjectStoreUnavailableError ? error.reason : messageOf(error);
      if (this.#store_problem !== before)
        log.warn({ problem: messageOf(error) }, 'the object store cannot be used');
      this.#store_problem_logged = true;
    }
  }

  async #disks(with_root: boolean): Promise<DiskReport[]> {
    // Paused VMs do not answer.
    if (!this.#context.lease.isHeld) return [];
    const all = await Promise.all(
      [...this.#runners].map(async ([instance_id, { runner }]) => {
        const dirty_bytes = await inTime(runner.dirtyBytes(), GUEST_MS);
        const root = with_root ? await inTime(rootUse(runner), GUEST_MS) : null;
        return { instance_id, dirty_bytes, root };
      }),
    );
    return all.flatMap(({ instance_id, dirty_bytes, root }) =>
      dirty_bytes === null ? [] : [{ instance_id, dirty_bytes, ...(root === null ? {} : { root }) }],
    );
  }

  async #describe(): Promise<HostFacts> {
    const images = await listHostImages(this.#context.paths.images);
    return {
      accelerator: this.#context.accel,
      accelerator_reason: untrustedText(this.#facts.accelerator_reason),
      isolation_problem: this.#isolation_problem === null ? null : untrustedText(this.#isolation_problem),
      cpus: cpus().length,
      memory_mib: Math.floor(totalmem() / 2 ** 20),
      images: images
        .map(({ id, version }) => ({ id, version }))
        // A folder that somebody named otherwise must not fail the heartbeat.
        .filter((image) => conforms(HostImage, image))
        .slice(0, IMAGES_MAX),
      enforces_egress: this.#context.network !== null,
      ...(this.#facts.machine === null ? {} : { machine: this.#facts.machine }),
      object_store_problem: this.#store_problem === null ? null : untrustedText(this.#store_problem),
    };
  }
}

/** null: it takes longer. */
async function inTime<T>(answer: Promise<T>, timeout_ms: number): Promise<T | null> {
  const enough = new AbortController();
  const late = pause(timeout_ms, enough.signal).then(() => null);
  return Promise.race([answer, late]).finally(() => enough.abort());
}
