/** A saved memory into a QEMU that waits for it, if it is of that machine and of that point in time. */
import { connect } from 'node:net';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { MemoryRef } from '../../agent-api/types.ts';
import { readMemory } from '../../disk-format/memory-format.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { differenceOf, hardwareTraits, qemuVersion } from '../vm/machine-traits.ts';
import { logTail } from '../vm/qemu-process.ts';
import type { Launch } from './launch-machine.ts';
import type { VmFolder } from './record.ts';
import { isMigrationEnd, tellOfMigration } from './suspend-machine.ts';

/** Less than a start may take. */
const LOAD_MS = 480_000;

/** The memory is of another machine, or another point in time. */
export class MemoryUnfitError extends Error {
  override name = 'MemoryUnfitError';
}

/** What can be known before QEMU runs. @throws MemoryUnfitError */
export function checkFit(
  { context, assignment }: Launch,
  memory: MemoryRef,
  disk: { readonly generation: number; readonly image_version: string },
): void {
  const { cpus, memory_mib } = assignment.spec;
  const { image_version } = disk;
  const difference = differenceOf(
    memory.traits,
    hardwareTraits({ cpus, memory_mib, accel: context.accel, image_version }),
  );
  if (difference) throw new MemoryUnfitError(difference);
  if (disk.generation !== memory.generation)
    throw new MemoryUnfitError(`its disk is at generation ${disk.generation}, not ${memory.generation}`);
}

export function incomingSocket({ runtime }: VmFolder): string {
  return join(runtime, 'resume.sock');
}

/** Into a QEMU that waits for it; its guest stands still as it did. */
export async function loadMemory(
  { context, assignment, disk, signal }: Launch,
  folder: VmFolder,
  qmp: QmpClient,
  memory: MemoryRef,
): Promise<void> {
  const difference = differenceOf(memory.traits, { qemu: await qemuVersion(qmp) });
  if (difference) throw new MemoryUnfitError(difference);
  await tellOfMigration(qmp);
  const within = AbortSignal.any([signal, AbortSignal.timeout(LOAD_MS)]);
  const ended = qmp.waitForEvent(isMigrationEnd, { timeout_ms: LOAD_MS, signal });
  let unreadable: unknown;
  const parts = async function* () {
    const { key, parts: count, key_id, salt, epoch, generation } = memory;
    const encryption = { key_id, salt: Buffer.from(salt, 'base64') };
    const place = { disk_id: assignment.instance_id, epoch, generation };
    try {
      const options = { store: context.store, place, keys: disk.keys, signal: within };
      yield* readMemory({ key, parts: count, encryption }, options);
    } catch (error) {
      unreadable = error;
      throw error;
    }
  };
  try {
    await pipeline(
      Readable.from(parts(), { objectMode: false, highWaterMark: 1 }),
      connect(incomingSocket(folder)),
      { signal: within },
    );
    const { data } = await ended;
    const { status } = await qmp.execute('query-status', undefined);
    if (data.status !== 'completed' || status !== 'paused') throw new Error(`its migration ${data.status}`);
  } catch (error) {
    if (unreadable) throw unreadable;
    signal.throwIfAborted();
    throw new Error(`QEMU does not take the memory: ${logTail(folder.qemu_log).join(' | ')}`.trim(), {
      cause: error,
    });
  }
}
