/**
 * Makes a running machine's memory and disk durable together.
 *
 *   running ──keys, ports closed──▶ paused: freeze, stop ─▶ flush: all dirty blocks, one generation ─▶ commit
 *      ▲                              │    ─▶ migrate: QEMU's stream → parts → store ─▶ recorded ──accepted──▶ ended
 *      │                              │                                                  │
 *      └──────── cancelSuspend ◀──────┴── a failure, the deadline, another wish          └── unwanted ──▶ cancelSuspend
 *
 * - The guest runs no instruction between `stop` and the end of its process: memory and disk are of one point in time.
 * - Until the record has `memory`, every failure, also an agent's death, ends in `cancelSuspend`: the guest continues.
 * - Once the record has `memory`, the guest never runs again here, unless the control plane cancels the suspend.
 * - The guest is paused only once the control plane has given the data keys. At the deadline it continues at once; a
 *   commit that was sent is then awaited beside the guest. It may make a generation, but no memory is saved with it.
 */
import { join } from 'node:path';
import { discardMemory, storeMemory } from '../../disk-format/memory-format.ts';
import type { Consistency, MemoryRef } from '../../protocol/types.ts';
import { backoffMs, pause, retryWithBackoff } from '../../shared/retry.ts';
import { type DiskState, FencedError } from '../disk/disk-state.ts';
import { type FlushContext, flushMachine, freeze, prepareFlush, thaw } from '../disk/flush-disk.ts';
import type { HostContext } from '../host-context.ts';
import type { VmUser } from '../qemu/confinement.ts';
import { hardwareTraits, maxStreamBytes, qemuVersion, saveStream } from '../qemu/migration.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import type { Machine } from './machine.ts';

export interface SuspendOptions {
  readonly context: FlushContext & Pick<HostContext, 'accel'>;
  readonly machine: Machine;
  readonly disk: DiskState;
  readonly spec: { readonly cpus: number; readonly memory_mib: number };
  /** The VM's user, who must reach the sockets. */
  readonly owner: VmUser | null;
  /** Another state is wanted, or the agent closes: the guest continues. */
  readonly signal: AbortSignal;
  /** The guest has been paused for long enough: it continues. */
  readonly deadline: AbortSignal;
  /** The agent closes. Nothing else interrupts the wait for the outcome of a commit that was sent. */
  readonly closing: AbortSignal;
}

/** QEMU finishes the requests under way. */
const STOP_MS = 30_000;
const CANCEL_MS = 30_000;

/** @throws FencedError, or the failure; the guest then continues, or is still paused if QEMU does not answer and `signal` has aborted */
export async function suspendMachine(options: SuspendOptions): Promise<MemoryRef> {
  const { context, machine, disk, owner, closing } = options;
  const signal = AbortSignal.any([options.signal, options.deadline]);
  const size_bytes = await prepareFlush(machine, disk, signal);
  await machine.update({ suspending: true });
  let flushed: Promise<unknown> = Promise.resolve();
  try {
    await machine.ports.drain(signal);
    const quiesce = await pauseGuest(machine);
    signal.throwIfAborted();
    flushed = flushMachine({
      ...{ context, machine, disk, owner, quiesce, signal },
      ...{ outcome_signal: closing, size_bytes },
    });
    await unlessAborted(flushed, signal);
    const memory = await unlessAborted(saveMemory(options, signal), signal);
    await machine.update({ memory });
    return memory;
  } catch (error) {
    await retryWithBackoff(() => cancelSuspend(machine), {
      what: 'resuming the guest',
      log: context.log,
      signal: options.signal,
      isOver: () => machine.gone || machine.broken,
    });
    await machine.ports
      .resume()
      .catch((err: unknown) =>
        context.log.warn({ err }, 'connections to the guest stay refused for a while'),
      );
    await flushed.catch((failure: unknown) => {
      // The machine must end.
      if (failure instanceof FencedError) throw failure;
    });
    throw error;
  }
}

/** Rejects as soon as `signal` aborts; the work then ends beside the guest. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = () => reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  try {
    const done = await Promise.race([work, aborted]);
    signal.throwIfAborted();
    return done;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

async function pauseGuest(machine: Machine): Promise<Consistency> {
  const { resets, view } = machine;
  const frozen = await freeze(machine);
  await machine.qmp.execute('stop', undefined, { timeout_ms: STOP_MS });
  const { status } = await machine.qmp.execute('query-status', undefined);
  if (status !== 'paused' || machine.view !== view || machine.resets !== resets)
    throw new Error('the guest rebooted or powered off');
  return frozen ? 'filesystem' : 'crash';
}

async function saveMemory(
  { context, machine, disk, spec, owner }: SuspendOptions,
  signal: AbortSignal,
): Promise<MemoryRef> {
  const { qmp, record } = machine;
  const place = { disk_id: record.instance_id, epoch: record.epoch, generation: disk.head.generation };
  const { image_version, frozen } = record;
  const traits = {
    ...hardwareTraits({ ...spec, accel: context.accel, image_version, network: record.network.kind }),
    qemu: await qemuVersion(qmp),
  };
  const { taken: stored, whole } = await saveStream(
    qmp,
    { path: join(machine.folder.runtime, 'memory.sock'), owner, signal },
    (stream) =>
      storeMemory(stream, {
        store: context.store,
        key_prefix: disk.key_prefix,
        place,
        data_key: disk.memory_key,
        max_bytes: maxStreamBytes(spec.memory_mib),
        signal,
      }),
  );
  if (!whole) {
    await discardMemory(context.store, stored);
    throw new Error('QEMU did not send all of its memory');
  }
  const { key, parts, memory_bytes, stored_bytes, encryption } = stored;
  return {
    ...{ key, parts, memory_bytes, stored_bytes, key_id: encryption.key_id },
    salt: Buffer.from(encryption.salt).toString('base64'),
    ...{ epoch: place.epoch, generation: place.generation, frozen, traits },
    authorized_keys: machine.given_keys,
  };
}

/** Resumes a guest that is paused for a suspend, at whatever stage the suspend is. */
export async function cancelSuspend(machine: Machine): Promise<void> {
  if (machine.gone) return;
  const { qmp } = machine;
  await endMigration(qmp);
  // Before the guest's next instruction, which makes the saved memory stale. Written even if null: a last write may have failed.
  if (machine.record.memory !== undefined) await machine.update({ memory: null });
  const { status } = await qmp.execute('query-status', undefined);
  if (status === 'paused' || status === 'postmigrate') await qmp.execute('cont', undefined);
  await machine.update({ suspending: false });
  if (machine.record.frozen) await thaw(machine);
}

const MIGRATING = ['setup', 'active', 'device', 'pre-switchover', 'cancelling'];

async function endMigration(qmp: QmpClient): Promise<void> {
  const deadline = performance.now() + CANCEL_MS;
  for (let attempt = 0; performance.now() < deadline; attempt++) {
    const { status } = await qmp.execute('query-migrate', undefined);
    if (status === undefined || !MIGRATING.includes(status)) return;
    if (attempt === 0) await qmp.execute('migrate_cancel', undefined);
    await pause(backoffMs(attempt, 10, 200));
  }
  throw new Error('saving the memory could not be cancelled');
}
