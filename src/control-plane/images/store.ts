/**
 * SQL of `image_versions`: the versions of images in the object store, which of them are current for new disks, and
 * which instances need one. `listImages` adds what this machine's own host has and has not stored yet.
 */
import { sql } from 'kysely';
import type { FoundImage, ImageRegistration } from '../../protocol/host-types.ts';
import type { HostId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';
import { listLiveHosts } from '../fleet/host-store.ts';

export interface Image {
  readonly id: string;
  /** The version for new disks; null while none is stored. */
  readonly current: string | null;
  /** Of the current version's root file system: the minimum size of a disk. */
  readonly size_bytes: number | null;
  readonly versions: readonly string[];
}

/** Stored images, and those of this machine's own host that are not stored yet; by id, after `after`. */
export async function listImages(tx: Tx, after: string | null = null): Promise<Image[]> {
  const images = new Map<
    string,
    { current: string | null; size_bytes: number | null; versions: Set<string> }
  >();
  const of = (id: string) => {
    const image = images.get(id) ?? { current: null, size_bytes: null, versions: new Set<string>() };
    images.set(id, image);
    return image;
  };
  const removed = new Set<string>();
  for (const row of await tx.selectFrom('image_versions').selectAll().execute()) {
    if (row.removed_at !== null) {
      removed.add(row.version);
      continue;
    }
    const image = of(row.image_id);
    image.versions.add(row.version);
    if (row.current) Object.assign(image, { current: row.version, size_bytes: row.size_bytes });
  }
  for (const host of await listLiveHosts(tx)) {
    // A remote host's report adds no image.
    if (host.remote) continue;
    for (const { id, version } of host.facts.images) if (!removed.has(version)) of(id).versions.add(version);
  }
  return [...images]
    .filter(([id]) => after === null || id.localeCompare(after) > 0)
    .map(([id, { versions, ...image }]) => ({ id, ...image, versions: [...versions].sort() }))
    .sort((a, b) => a.id.localeCompare(b.id));
}

export interface StoredVersion {
  readonly image_id: string;
  readonly version: string;
  readonly current: boolean;
  readonly size_bytes: number;
  readonly stored_bytes: number;
  readonly created_at: Date;
  /** Disks that are based on it. */
  readonly disks: number;
}

const VERSIONS_MAX = 1_000;

/** The versions in the object store, by image, newest first. */
export async function listStoredVersions(tx: Tx): Promise<StoredVersion[]> {
  const { rows } = await sql<StoredVersion>`
    select image_id, version, current, size_bytes, stored_bytes, created_at,
      (select count(*) from disks d where d.image_version = v.version) as disks
    from image_versions v where removed_at is null
    order by image_id, created_at desc, version limit ${VERSIONS_MAX}`.execute(tx);
  return rows;
}

/** The built-in image always is; others when they are stored, or while a connected host has them. */
export async function imageKnown(tx: Tx, id: string): Promise<boolean> {
  return id === 'debian-12' || (await listImages(tx)).some((image) => image.id === id);
}

/** The version for new disks. Locked against removal until the transaction's end. */
export async function currentImage(tx: Tx, id: string) {
  return tx
    .selectFrom('image_versions')
    .select(['version', 'size_bytes'])
    .where('image_id', '=', id)
    .where('current', '=', true)
    .forShare()
    .executeTakeFirst();
}

/** The given version, or the current one. */
export async function findImage(tx: Tx, id: string, version: string | null): Promise<FoundImage | null> {
  const query = tx
    .selectFrom('image_versions')
    .select(['version', 'index_sha256'])
    .where('image_id', '=', id)
    .where('removed_at', 'is', null);
  const row = await (version === null
    ? query.where('current', '=', true)
    : query.where('version', '=', version)
  ).executeTakeFirst();
  return row ?? null;
}

/** Whether it is stored and not removed; if so, locked against removal until the transaction's end. */
export async function holdVersion(tx: Tx, id: string, version: string): Promise<boolean> {
  const row = await tx
    .selectFrom('image_versions')
    .select('version')
    .where('image_id', '=', id)
    .where('version', '=', version)
    .where('removed_at', 'is', null)
    .forShare()
    .executeTakeFirst();
  return row !== undefined;
}

export async function findVersion(tx: Tx, id: string, version: string) {
  return tx
    .selectFrom('image_versions')
    .selectAll()
    .where('image_id', '=', id)
    .where('version', '=', version)
    .executeTakeFirst();
}

/** Every version that is not removed, the current one first, then by age; locked against starts that choose one. */
export async function lockVersions(tx: Tx, id: string) {
  return tx
    .selectFrom('image_versions')
    .selectAll()
    .where('image_id', '=', id)
    .where('removed_at', 'is', null)
    .orderBy('current', 'desc')
    .orderBy('created_at', 'desc')
    .forUpdate()
    .execute();
}

/** The versions that are not removed. */
export async function listVersions(tx: Tx, id: string): Promise<string[]> {
  const rows = await tx
    .selectFrom('image_versions')
    .select('version')
    .where('image_id', '=', id)
    .where('removed_at', 'is', null)
    .execute();
  return rows.map(({ version }) => version);
}

/** Removed versions; their objects may still exist. */
export async function listRemoved(tx: Tx, id: string): Promise<string[]> {
  const rows = await tx
    .selectFrom('image_versions')
    .select('version')
    .where('image_id', '=', id)
    .where('removed_at', 'is not', null)
    .execute();
  return rows.map(({ version }) => version);
}

/** False when it is known already, even as removed. */
export async function insertVersion(tx: Tx, image: ImageRegistration): Promise<boolean> {
  const { id, newest: _, ...rest } = image;
  const row = await tx
    .insertInto('image_versions')
    .values({ image_id: id, ...rest, removed_at: null })
    .onConflict((conflict) => conflict.doNothing())
    .returning('version')
    .executeTakeFirst();
  return row !== undefined;
}

/** Makes a removed version usable again. */
export async function restoreVersion(tx: Tx, image: ImageRegistration): Promise<void> {
  await tx
    .updateTable('image_versions')
    .set({ removed_at: null, index_sha256: image.index_sha256, stored_bytes: image.stored_bytes })
    .where('image_id', '=', image.id)
    .where('version', '=', image.version)
    .execute();
}

export async function makeCurrent(tx: Tx, id: string, version: string): Promise<void> {
  const of = () => tx.updateTable('image_versions').where('image_id', '=', id);
  await of().set({ current: false }).where('current', '=', true).execute();
  await of().set({ current: true }).where('version', '=', version).execute();
}

export async function markImageRemoved(tx: Tx, id: string, version: string): Promise<void> {
  await tx
    .updateTable('image_versions')
    .set({ removed_at: sql`now()`, current: false })
    .where('image_id', '=', id)
    .where('version', '=', version)
    .execute();
}

/** Names of up to five instances whose disks are, or may be, deltas of that version. */
export async function instancesOfVersion(tx: Tx, id: string, version: string): Promise<string[]> {
  const rows = await tx
    .selectFrom('instances as i')
    .innerJoin('disks as d', 'd.instance_id', 'i.id')
    .select('i.name')
    .where((eb) =>
      eb.or([
        eb('d.image_version', '=', version),
        // It booted before any version was stored: only its host knows which one it is based on.
        eb.and([eb('i.image', '=', id), eb('d.image_version', 'is', null), eb('d.epoch', '>', 0)]),
      ]),
    )
    .orderBy('i.id')
    .limit(5)
    .execute();
  return rows.map(({ name }) => name);
}

/** Whether the newest VM of one of the image's instances is on the host, and its disk has that version or none yet. */
export async function diskNeeds(tx: Tx, host_id: HostId, id: string, version: string): Promise<boolean> {
  const { rows } = await sql`
    select from instances i join disks d on d.instance_id = i.id
    join lateral (select host_id from vms where instance_id = i.id order by boot desc limit 1) v
      on v.host_id = ${host_id}
    where i.image = ${id} and coalesce(d.image_version, ${version}) = ${version} limit 1`.execute(tx);
  return rows.length > 0;
}

/** Names of up to five instances of the image, of any version. */
export async function instancesOfImage(tx: Tx, id: string): Promise<string[]> {
  const rows = await tx
    .selectFrom('instances')
    .select('name')
    .where('image', '=', id)
    .orderBy('id')
    .limit(5)
    .execute();
  return rows.map(({ name }) => name);
}

export const BUSY = Symbol('busy');

/** Serialises commands that add or remove images. BUSY when another holds the lock. */
export async function withImageLock<T>(db: Db, work: () => Promise<T>): Promise<T | typeof BUSY> {
  const lock = sql`pg_try_advisory_lock(7400004) as taken`;
  return db.connection().execute(async (connection) => {
    const { rows } = await sql<{ taken: boolean }>`select ${lock}`.execute(connection);
    if (rows[0]?.taken !== true) return BUSY;
    try {
      return await work();
    } finally {
      await sql`select pg_advisory_unlock(7400004)`.execute(connection);
    }
  });
}

/** What the object store has of each version that is not removed. */
export async function listIndexes(tx: Tx) {
  return tx
    .selectFrom('image_versions')
    .select(['image_id as id', 'version', 'index_sha256'])
    .where('removed_at', 'is', null)
    .execute();
}

/** After a restore: another object store has it, as another index. */
export async function setStored(
  tx: Tx,
  version: string,
  { index_sha256, stored_bytes }: Pick<ImageRegistration, 'index_sha256' | 'stored_bytes'>,
): Promise<void> {
  await tx
    .updateTable('image_versions')
    .set({ index_sha256, stored_bytes })
    .where('version', '=', version)
    .execute();
}

/** Forgets a version that the object store lacks: a host that has it offers it again. */
export async function deleteVersion(tx: Tx, id: string, version: string): Promise<void> {
  await tx.deleteFrom('image_versions').where('image_id', '=', id).where('version', '=', version).execute();
}
