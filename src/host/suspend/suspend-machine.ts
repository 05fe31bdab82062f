/**
 * A running machine's memory and disk, made durable together.
 *
 *   freeze ─▶ stop ─▶ flush: all that is dirty, one generation ─▶ migrate: QEMU's stream → parts → store ─▶ recorded
 *
 * The guest runs no instruction between `stop` and the end of its process, so both are of one point in time. Whatever fails
 * before the record says `memory`, and whatever an agent's death leaves, ends in `cancelSuspend`, however long QEMU does not answer: the
 * guest goes on as if nothing had been asked for. With `memory` in the record it never runs again here, unless the control plane says that it is to.
 */
import { join } from 'node:path';
import type { Consistency, MemoryRef } from '../../agent-api/types.ts';
import { discardMemory, storeMemory } from '../../disk-format/memory-format.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { retryWithBackoff } from '../../lib/retry.ts';
import { flushMachine } from '../flush/flush-machine.ts';
import { freeze, thaw } from '../flush/freeze.ts';
import type { HostContext } from '../host-context.ts';
import type { Machine } from '../machine/machine.ts';
import type { DiskState } from '../overlay/disk-state.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { hardwareTraits, qemuVersion } from '../vm/machine-traits.ts';
import { maxStreamBytes, saveStream } from '../vm/migration.ts';
import type { VmUser } from '../vm/uid.ts';

export interface SuspendOptions {
  readonly context: HostContext;
  readonly machine: Machine;
  readonly disk: DiskState;
  readonly spec: { readonly cpus: number; readonly memory_mib: number };
  /** The VM's user, which must reach the sockets. */
  readonly owner: VmUser | null;
  readonly signal: AbortSignal;
  /** The flush's own: whether its commit has happened must be known, whatever else is wanted. */
  readonly closing: AbortSignal;
}

/** QEMU waits for requests under way. */
const STOP_MS = 30_000;
const CANCEL_MS = 30_000;

/** @throws FencedError, or what failed; then the guest runs on, or still stands where something else is wanted meanwhile */
export async function suspendMachine(options: SuspendOptions): Promise<MemoryRef> {
  const { context, machine, disk, owner, signal, closing } = options;
  await machine.update({ suspending: true });
  try {
    const quiesce = await standStill(machine);
    await flushMachine({ context, machine, disk, owner, quiesce, signal: closing });
    signal.throwIfAborted();
    const memory = await saveMemory(options);
    await machine.update({ memory });
    return memory;
  } catch (error) {
    const anything_else = AbortSignal.any([signal, closing]);
    await retryWithBackoff(() => cancelSuspend(machine), {
      log: context.log,
      signal: anything_else,
      isOver: () => machine.gone || machine.broken,
    });
    throw error;
  }
}

async function standStill(machine: Machine): Promise<Consistency> {
  const { resets, view } = machine;
  const frozen = await freeze(machine);
  await machine.qmp.execute('stop', undefined, { timeout_ms: STOP_MS });
  const { status } = await machine.qmp.execute('query-status', undefined);
  if (status !== 'paused' || machine.view !== view || machine.resets !== resets)
    throw new Error('the guest rebooted or went off');
  return frozen ? 'filesystem' : 'crash';
}

async function saveMemory({
  context,
  machine,
  disk,
  spec,
  owner,
  signal,
}: SuspendOptions): Promise<MemoryRef> {
  const { qmp, record } = machine;
  const place = { disk_id: record.instance_id, epoch: record.epoch, generation: disk.head.generation };
  const { image_version, frozen } = record;
  const traits = {
    ...hardwareTraits({ ...spec, accel: context.accel, image_version }),
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

/** Lets a guest go on that stands still for a suspend, wherever that has come to. */
export async function cancelSuspend(machine: Machine): Promise<void> {
  if (machine.gone) return;
  const { qmp } = machine;
  await endMigration(qmp);
  // Before its first instruction: from there on what was saved is of another time. Written again where the last try may have failed.
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
  throw new Error('the saving of the memory does not end');
}
