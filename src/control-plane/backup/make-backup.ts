/**
 * Makes a backup of an installation while it runs: the rows of the database, the objects that its disks need, their
 * base images, and the secret key unless it is left out.
 *
 * Order: `keepObjects`, which stops the removal of objects; a snapshot of the database; the copies; a sync; the
 * manifest. The copies fit the snapshot, because objects never change, are durable before a row names them, and are not
 * removed meanwhile.
 */
import { mkdir, open, readdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Paths } from '../../config/paths.ts';
import { runCommand } from '../../launcher/run-command.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import type { Db } from '../db/pool.ts';
import { keepObjects } from '../disks/keep-objects.ts';
import {
  type SavedObjects,
  type StoredObject,
  saveImages,
  saveObjects,
  type WantedImage,
} from './copy-objects.ts';
import { BACKUP_VERSION, BackupError, type BackupManifest, backupPaths, keyCheck } from './manifest.ts';
import { type Snapshot, withSnapshot, writeLines } from './table-data.ts';

export interface MakeBackupOptions {
  /** Created if missing; must be empty. */
  readonly folder: string;
  readonly db: Db;
  readonly database_url: string;
  readonly paths: Pick<Paths, 'data' | 'images'>;
  readonly secret_key: Buffer;
  readonly with_key: boolean;
  /** Null: the objects stay in their bucket. */
  readonly store: ObjectStore | null;
  readonly signal: AbortSignal;
  readonly onProgress: (what: string) => void;
  /** For tests: called between the snapshot and the first object. */
  readonly afterDatabase?: () => Promise<void>;
}

export interface MadeBackup {
  readonly manifest: BackupManifest;
  /** Base images that disks need, and that neither this machine nor the object store has. */
  readonly missing_images: readonly string[];
  /** Images left out because of damaged files, and these files. */
  readonly damaged_images: readonly string[];
}

interface State {
  readonly made_at: string;
  readonly migrations: BackupManifest['migrations'];
  readonly database: BackupManifest['database'];
  readonly objects: readonly StoredObject[];
  readonly store: string | null;
  readonly images: readonly WantedImage[];
}

/** Objects held by instances that are not being deleted: all others may be removed at any time. */
const OBJECTS = `
  select s.key, s.size_bytes::float8 as size_bytes from segments s
  where exists (
    select from segment_holders h join instances i on i.id = h.instance_id
    where h.key = s.key and not i.deleting
  ) order by s.key`;
const STORE = 'select id from object_stores where marked_at is not null';
const IMAGES = `
  select n.image, n.version, v.index_sha256, coalesce(v.current, false) as current
  from (
    select i.image, d.image_version as version from instances i join disks d on d.instance_id = i.id
    where d.image_version is not null and not i.deleting
    union select image_id, version from image_versions where current
  ) n
  left join image_versions v on v.image_id = n.image and v.version = n.version and v.removed_at is null
  order by 1, 2`;

/** @throws BackupError */
export async function makeBackup(options: MakeBackupOptions): Promise<MadeBackup> {
  const { folder, db, database_url, paths, secret_key, with_key, signal, onProgress } = options;
  await makeEmptyFolder(folder);
  const into = backupPaths(folder);
  const kept = await keepObjects(db);
  try {
    onProgress('saving the database');
    const state = await withSnapshot(database_url, (snapshot) => saveDatabase(snapshot, folder, signal));
    await options.afterDatabase?.();
    const saved = await saveAll(options, state);
    const list = saved.saved.toSorted((a, b) => (a.key < b.key ? -1 : 1));
    const object_list = await writeLines(
      into.object_list,
      list.map((each) => JSON.stringify(each)),
      signal,
    );
    onProgress('saving base images');
    const images = await saveImages({
      images_dir: paths.images,
      into: into.images,
      wanted: state.images,
      store: options.store,
      signal,
    });
    if (with_key)
      await writeFile(into.secret_key, `${secret_key.toString('hex')}\n`, { mode: 0o600, flag: 'wx' });
    // Otherwise, objects may have been removed meanwhile.
    await kept.check();
    const manifest: BackupManifest = {
      kind: 'berth backup',
      version: BACKUP_VERSION,
      made_at: state.made_at,
      migrations: state.migrations,
      database: state.database,
      objects: {
        included: options.store !== null,
        count: list.length,
        bytes: list.reduce((sum, { size_bytes }) => sum + size_bytes, 0),
        sha256: object_list,
        store: state.store,
        damaged: saved.damaged.toSorted(),
      },
      images: images.images,
      secret_key: { included: with_key, check: keyCheck(secret_key) },
    };
    onProgress('writing everything to the disk');
    await finish(folder, manifest);
    return { manifest, missing_images: images.missing, damaged_images: images.damaged };
  } finally {
    await kept.release();
  }
}

async function saveDatabase(snapshot: Snapshot, folder: string, signal: AbortSignal): Promise<State> {
  const { migrations, query } = snapshot;
  if (migrations.length === 0) throw new BackupError('the database is empty: start Berth once', 'state');
  const made_at = new Date().toISOString();
  const objects = await query<{ key: string; size_bytes: number }>(OBJECTS);
  const images = await query<WantedImage>(IMAGES);
  const [store] = await query<{ id: string }>(STORE);
  let rows = 0;
  const counted = async function* () {
    for await (const line of snapshot.lines()) {
      if (line.startsWith('"')) rows += 1;
      yield line;
    }
  };
  const sha256 = await writeLines(backupPaths(folder).database, counted(), signal);
  return { made_at, migrations, objects, store: store?.id ?? null, images, database: { rows, sha256 } };
}

async function saveAll(
  { store, folder, signal, onProgress }: MakeBackupOptions,
  { objects }: State,
): Promise<SavedObjects> {
  if (store === null) return { saved: objects.map((each) => ({ ...each, sha256: null })), damaged: [] };
  return saveObjects({
    store,
    objects,
    signal,
    folder: backupPaths(folder).objects,
    onProgress: (done) => onProgress(`saving objects: ${done} of ${objects.length}`),
  });
}

async function makeEmptyFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const names = await readdir(folder);
    if (names.some((name) => name !== 'lost+found')) {
      throw new BackupError(`${folder} is not empty: a backup needs an empty folder`, 'state');
    }
  } catch (error) {
    if (error instanceof BackupError) throw error;
    if (errnoOf(error) === undefined) throw error;
    throw new BackupError(`${folder} cannot be created or written: ${messageOf(error)}`, 'usage');
  }
}

/** The manifest comes last: it makes the folder a backup. */
async function finish(folder: string, manifest: BackupManifest): Promise<void> {
  await syncFileSystem(folder);
  const path = backupPaths(folder).manifest;
  const temporary = `${path}.new`;
  {
    await using file = await open(temporary, 'wx', 0o600);
    await file.writeFile(`${JSON.stringify(manifest, null, 2)}\n`);
    await file.sync();
  }
  await rename(temporary, path);
  await using handle = await open(join(folder, '.'), 'r');
  await handle.sync();
}

/** One sync for all files, instead of one for each. */
export async function syncFileSystem(folder: string): Promise<void> {
  const synced = await runCommand('sync', ['-f', folder]);
  if (synced.code !== 0)
    throw new BackupError(`${folder} could not be written: ${synced.stderr.trim()}`, 'state');
}
