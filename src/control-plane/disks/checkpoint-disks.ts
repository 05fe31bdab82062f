import { wholeMap } from '../../disk-format/diff-maps.ts';
import { diskPrefix } from '../../disk-format/disk-prefix.ts';
import { KeyRing } from '../../disk-format/key-ring.ts';
import { loadMap } from '../../disk-format/load-map.ts';
import { writeMap } from '../../disk-format/map-object.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { type CompactOptions, discard } from './compact-disk.ts';
import { DISKS_MAX, eachClaimed } from './compact-disks.ts';
import { layersOf, listLongChains, placeCheckpoint, readLinks } from './compaction-store.ts';
import { markKeyUsed } from './data-key-store.ts';
import { openDataKeys } from './data-keys.ts';
import { type WriterId, writeObjects } from './writer-store.ts';

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
