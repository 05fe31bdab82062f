/**
 * Compacts disks, so that their generations need few rows and few bytes in the object store. A full map lists all
 * blocks of a generation that differ from the base image; a delta lists those that differ from its parent.
 * `compactDisk` writes full maps and deltas for the retained generations, rewrites segments of which less than half is
 * still needed, and releases objects that no generation needs. `checkpointDisk` only writes a full map for a head with
 * a long chain of generations.
 *
 * A kill at any point does no harm, and several processes may work at once:
 * - New objects are durable before the one transaction that names them. It checks that the chains are as they were
 *   read, and that the sweep of orphans has left the new objects alone (segment-store.ts).
 * - New objects that were not named are removed by their writer or, after a kill, by that sweep.
 * - Released objects stay for a while (`freeSegments` in remove-objects.ts).
 */
import { CompressPool } from '../../disk-format/compress-pool.ts';
import { KeyRing } from '../../disk-format/frame-cipher.ts';
import { type Chain, chainMaps, diffSteps, loadMap, wholeMap } from '../../disk-format/load-map.ts';
import { type MapChange, writeMap } from '../../disk-format/map-objects.ts';
import { LiveBlocks, Relocations, SegmentRewriter } from '../../disk-format/rewrite-segments.ts';
import { diskPrefix } from '../../disk-format/segment-format.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import type { MapRef } from '../../protocol/types.ts';
import { inSlices } from '../../shared/concurrency.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import type { Db } from '../db/pool.ts';
import {
  claimDisk,
  type DiskLinks,
  type Link,
  layersOf,
  listLongChains,
  listWasteful,
  type NewObject,
  type PlacedMap,
  placeCheckpoint,
  placeCompaction,
  readLinks,
  releaseDisk,
} from './compaction-store.ts';
import { markKeyUsed } from './data-key-store.ts';
import { type DiskKeys, type InstanceKeys, openDataKeys } from './data-keys.ts';
import { type WriterId, writeObjects } from './segment-store.ts';

/** Longest run of deltas on a full map; deltas larger than half of it end the run too, as in the head's chain. */
const DELTAS_MAX = 32;
/** Bytes rewritten for one disk in one run; the rest waits for the next. */
const REWRITE_MAX_BYTES = 4 * 1024 ** 3;
const ENTRY_BYTES = 40;

export interface CompactOptions {
  readonly db: Db;
  readonly store: ObjectStore;
  readonly disk_keys: DiskKeys;
}

interface Work {
  readonly store: ObjectStore;
  readonly disk: DiskLinks;
  readonly keys: KeyRing;
  readonly write_key: InstanceKeys['own'] | null;
  /** The retained generations, and the head. */
  readonly kept: readonly Link[];
  readonly chains: readonly Chain[];
}

/** False if there was nothing to do, or the disk changed meanwhile and has to be read again. */
export async function compactDisk(options: CompactOptions, instance_id: InstanceId): Promise<boolean> {
  const placed = await writeObjects(options.db, instance_id, (writer) =>
    compact(options, instance_id, writer),
  );
  return placed ?? false;
}

async function compact(
  { db, store, disk_keys }: CompactOptions,
  instance_id: InstanceId,
  writer: WriterId,
): Promise<boolean> {
  const disk = await readLinks(db, instance_id);
  const opened = disk && (await openDataKeys(db, disk_keys, instance_id));
  if (!disk || !opened) return false;
  // Before any write: a later fork then takes this key along, which its replaced objects may be encrypted with.
  if (disk_keys.encryption) await markKeyUsed(db, instance_id, opened.own.key_id);
  const kept = disk.links.filter(({ retained, generation }) => retained || generation === disk.generation);
  const work: Work = {
    store,
    disk,
    keys: new KeyRing(opened.keys),
    write_key: disk_keys.encryption ? opened.own : null,
    kept,
    chains: kept.map(({ generation }) => ({ generation, layers: layersOf(disk.links, generation) })),
  };
  const made: NewObject[] = [];
  const pool = new CompressPool({ workers: 1 });
  try {
    const live = await findLive(work);
    const moved = await rewrite(work, pool, live, made);
    const maps = await writeMaps(work, moved, made).catch(async (error: unknown) => {
      await discard(store, made);
      throw error;
    });
    const needed = new Set([...made, ...maps.map(({ map }) => map)].map(({ key }) => key));
    const dead = disk.held
      .map(({ key }) => key)
      .filter((key) => !needed.has(key) && (!live.has(key) || moved.concern(key)));
    if (await placeCompaction(db, disk, writer, { maps, added: made, dead })) return true;
    await discard(store, made);
    return false;
  } finally {
    // An error of the placing removes nothing: the transaction may be committed although its answer was lost.
    await pool.close();
  }
}

async function findLive({ store, keys, chains }: Work): Promise<LiveBlocks> {
  const live = new LiveBlocks();
  for await (const { before, map } of chainMaps({ store, keys, chains })) {
    await live.addChanges(before, map);
  }
  return live;
}

/** Leaves segments alone that other instances also hold: rewriting them would free nothing. */
async function rewrite(
  { store, disk, keys, write_key }: Work,
  pool: CompressPool,
  live: LiveBlocks,
  made: NewObject[],
): Promise<Relocations> {
  const own = new Set(disk.held.filter(({ shared }) => !shared).map(({ key }) => key));
  let bytes = 0;
  const victims = live.wasteful().filter(({ key, size_bytes }) => {
    if (!own.has(key)) return false;
    bytes += size_bytes;
    return bytes <= REWRITE_MAX_BYTES;
  });
  if (victims.length === 0) return new Relocations();
  const { instance_id, epoch, generation, size_bytes } = disk;
  const rewriter = new SegmentRewriter({
    ...{
      store,
      pool,
      keys,
      data_key: write_key,
      disk_bytes: size_bytes,
      key_prefix: diskPrefix(instance_id),
    },
    home: { disk_id: instance_id, epoch, generation },
  });
  try {
    for (const { key, size_bytes, disk_id, encryption } of victims) {
      const ref = { key, size_bytes, disk_id, key_id: encryption?.key_id ?? null };
      await rewriter.take(ref, (block) => live.isLive(key, block));
    }
    const { segments, moved } = await rewriter.finish();
    made.push(...segments);
    return moved;
  } catch (error) {
    await rewriter.discard();
    throw error;
  }
}

/** One map for each kept generation; a map that is already right stays. */
async function writeMaps(work: Work, moved: Relocations, made: NewObject[]): Promise<PlacedMap[]> {
  const { store, keys, kept, chains } = work;
  const placed: PlacedMap[] = [];
  let deltas = 0;
  let delta_bytes = 0;
  let full_bytes = 0;
  let i = 0;
  for await (const { before, map } of chainMaps({ store, keys, chains })) {
    const link = kept[i];
    const parent = kept[i - 1]?.generation ?? null;
    i += 1;
    if (!link) break;
    const changed = await countChanges(diffSteps(before, map), moved);
    delta_bytes += changed.count * ENTRY_BYTES;
    deltas += 1;
    const full =
      parent === null || deltas > DELTAS_MAX || delta_bytes > Math.max(full_bytes / 2, ENTRY_BYTES * 64);
    const changes = () => (full ? wholeMap(map) : diffSteps(before, map));
    const stays = link.map?.full === full && (full || link.parent === parent);
    const ref =
      stays && link.map && (await countChanges(changes(), moved)).moved === 0
        ? link.map
        : await writeOne(work, link.generation, full, relocated(changes(), moved), made);
    if (full) {
      deltas = 0;
      delta_bytes = 0;
      full_bytes = ref.size_bytes;
    }
    placed.push({ generation: link.generation, parent: full ? null : parent, map: ref });
  }
  return placed;
}

async function writeOne(
  { store, disk, write_key }: Work,
  generation: number,
  full: boolean,
  changes: Iterable<MapChange | undefined>,
  made: NewObject[],
): Promise<MapRef> {
  const { instance_id, size_bytes } = disk;
  const written = await writeMap({
    ...{ store, key_prefix: diskPrefix(instance_id), disk_id: instance_id, disk_bytes: size_bytes },
    ...{ generation, full, changes, data_key: write_key },
  });
  made.push(written);
  return written;
}

async function countChanges(
  changes: Iterable<MapChange | undefined>,
  moved: Relocations,
): Promise<{ readonly count: number; readonly moved: number }> {
  let count = 0;
  let elsewhere = 0;
  await inSlices(changes, ({ to }) => {
    count += 1;
    if (to && moved.concern(to.key)) elsewhere += 1;
  });
  return { count, moved: elsewhere };
}

function* relocated(
  changes: Iterable<MapChange | undefined>,
  moved: Relocations,
): Generator<MapChange | undefined> {
  for (const change of changes) yield change && moved.apply(change);
}

/** Best effort: the sweep removes the rest. */
export async function discard(store: ObjectStore, made: readonly NewObject[]): Promise<void> {
  await Promise.allSettled(made.map(({ key }) => store.delete(key)));
}

/** Disks of one run; the rest waits for the next. */
export const DISKS_MAX = 1_000;

/** Compacts the disks that hold objects which no retained generation needs. Begins no disk after `signal` aborts. */
export async function compactDisks(options: CompactOptions, log: Log, signal: AbortSignal): Promise<void> {
  const due = await listWasteful(options.db, DISKS_MAX);
  await eachClaimed(options, due, { log, signal }, async (instance_id) => {
    if (await compactDisk(options, instance_id)) log.info({ instance_id }, 'disk compacted');
  });
}

/**
 * Works on one disk after another; one process at a time claims a disk. A disk that fails keeps its claim until the claim
 * expires, so it is not retried at once, and the others go on.
 */
async function eachClaimed(
  { db }: CompactOptions,
  due: readonly InstanceId[],
  { log, signal }: { readonly log: Log; readonly signal: AbortSignal },
  work: (instance_id: InstanceId) => Promise<void>,
): Promise<void> {
  for (const instance_id of due) {
    if (signal.aborted) return;
    if (!(await claimDisk(db, instance_id))) continue;
    try {
      await work(instance_id);
      await releaseDisk(db, instance_id);
    } catch (error) {
      log.warn({ err: error, instance_id }, 'a disk could not be compacted; it is tried again later');
    }
  }
}

/** Writes a full map for each head with a long chain, so that a start or a restore need not read the chain. */
export async function checkpointDisks(options: CompactOptions, log: Log, signal: AbortSignal): Promise<void> {
  const due = await listLongChains(options.db, DISKS_MAX);
  await eachClaimed(options, due, { log, signal }, async (instance_id) => {
    await checkpointDisk(options, instance_id);
  });
}

/** False if the chain changed meanwhile. A kill at any point leaves at most an orphaned object, which the sweep removes. */
export async function checkpointDisk(options: CompactOptions, instance_id: InstanceId): Promise<boolean> {
  const placed = await writeObjects(options.db, instance_id, (writer) =>
    checkpoint(options, instance_id, writer),
  );
  return placed ?? false;
}

async function checkpoint(
  { db, store, disk_keys }: CompactOptions,
  instance_id: InstanceId,
  writer: WriterId,
): Promise<boolean> {
  const disk = await readLinks(db, instance_id);
  const opened = disk && (await openDataKeys(db, disk_keys, instance_id));
  if (!disk || !opened) return false;
  if (disk_keys.encryption) await markKeyUsed(db, instance_id, opened.own.key_id);
  const { generation, size_bytes } = disk;
  const layers = layersOf(disk.links, generation);
  const map = await loadMap({ store, keys: new KeyRing(opened.keys), layers });
  const written = await writeMap({
    ...{ store, key_prefix: diskPrefix(instance_id), disk_id: instance_id, disk_bytes: size_bytes },
    ...{ generation, full: true, changes: wholeMap(map), data_key: disk_keys.encryption ? opened.own : null },
  });
  if (await placeCheckpoint(db, disk, writer, written)) return true;
  await discard(store, [written]);
  return false;
}
