/**
 * Restores a backup into an empty data folder and an empty database.
 *
 * - Base images and objects come first. Then the rows are loaded into the schema that the backup had, which is migrated
 *   afterwards.
 * - A marker in the folder (`UNFINISHED_RESTORE`) keeps Berth from starting until the restore is complete.
 * - VMs that ran when the backup was made become `failed`. They continue from their last generations.
 */
import { lstat, mkdir, open, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Config } from '../../config/config.ts';
import { type Paths, pathsIn } from '../../config/paths.ts';
import { isImageStored, type StoredImage } from '../../disk-format/image-objects.ts';
import {
  lockDataFolder,
  makeDataFolder,
  UNFINISHED_RESTORE,
  writeSecret,
} from '../../launcher/data-folder.ts';
import { startEmbeddedPostgres } from '../../launcher/embedded-postgres.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import { openStore } from '../../object-store/open-store.ts';
import { readMark } from '../../object-store/store-mark.ts';
import { errnoOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { knownMigrations, MigrationError, migrate, refuseUnknown } from '../db/migrate.ts';
import { type Db, openPool } from '../db/pool.ts';
import { clearAllDirtyBytes, deleteStoreMark, invalidateOverlays } from '../disks/store.ts';
import { giveUpLocalHost } from '../fleet/fleet-store.ts';
import { deleteVersion, listIndexes, setStored } from '../images/store.ts';
import { failLost } from '../vms/deadline-monitor.ts';
import { copyImage, makeNewest, restoreObjects, storeImages } from './copy-objects.ts';
import { syncFileSystem } from './make-backup.ts';
import {
  BackupError,
  type BackupManifest,
  type BackupObject,
  backupPaths,
  keyCheck,
  readManifest,
} from './manifest.ts';
import { DataError, fileSha256, loadData, queryTableCount, readLines } from './table-data.ts';

export interface RestoreBackupOptions {
  readonly folder: string;
  readonly config: Config;
  readonly log: Log;
  readonly signal: AbortSignal;
  readonly onProgress: (what: string) => void;
}

export interface RestoredBackup {
  readonly manifest: BackupManifest;
  /** Images and objects that are damaged in the backup, or were when it was made. */
  readonly damaged: readonly string[];
  /** VMs that were running in the snapshot and are `failed` now: they continue from the last generation. */
  readonly lost_vms: number;
}

const LOST_MESSAGE =
  'The machine was restored from a backup. The disk is as it was last flushed before that.';

/** @throws BackupError, StartError */
export async function restoreBackup(options: RestoreBackupOptions): Promise<RestoredBackup> {
  const { folder, config, onProgress, signal } = options;
  const manifest = await readManifest(folder);
  refuseUnreadable(manifest);
  const secret_key = await keyOf(folder, manifest, config.secret_key);
  if (!manifest.objects.included && config.s3 === null) {
    throw new BackupError(
      'the objects of this backup stayed in their bucket: set BERTH_S3_BUCKET to it',
      'usage',
    );
  }
  await refuseUnlessEmpty(config.data_dir);
  if (config.database_url !== null) await refuseUnlessDatabaseEmpty(config.database_url);
  onProgress('checking the backup');
  const objects = await readObjectList(folder, manifest);
  if ((await fileSha256(backupPaths(folder).database, signal)) !== manifest.database.sha256) {
    throw new BackupError('database.jsonl.zst is damaged', 'damaged');
  }
  const paths = pathsIn(config.data_dir);
  const bucket = config.s3 && (await openStore({ s3: config.s3, folder: paths.objects, log: options.log }));
  const marked = bucket !== null && (await refuseOtherStore(bucket, manifest));
  await makeDataFolder(paths);
  const lock = await lockDataFolder(paths.launcher_lock, onProgress);
  try {
    const marker = join(paths.data, UNFINISHED_RESTORE);
    await writeFile(marker, `${folder}\n`);
    const store = bucket ?? (await openStore({ s3: null, folder: paths.objects, log: options.log }));
    const damaged = await copyImages(options, manifest, paths);
    damaged.push(...(await copyObjects(options, store, manifest, objects)));
    const images = manifest.objects.included
      ? await storeImages(store, paths.images, manifest.images, signal)
      : null;
    const lost_vms = await loadDatabase({ ...options, manifest, marked, store, images }, paths);
    if (config.secret_key === null) await writeSecret(paths.secret_key, `${secret_key.toString('hex')}\n`);
    onProgress('writing everything to the disk');
    await syncFileSystem(paths.data);
    await rm(marker);
    await using handle = await open(paths.data, 'r');
    await handle.sync();
    return { manifest, lost_vms, damaged: [...new Set([...manifest.objects.damaged, ...damaged])] };
  } finally {
    lock.release();
  }
}

function refuseUnreadable({ migrations }: BackupManifest): void {
  try {
    refuseUnknown(knownMigrations(), migrations);
  } catch (error) {
    if (!(error instanceof MigrationError)) throw error;
    throw new BackupError(`the backup cannot be restored: ${error.message}`, 'usage', { cause: error });
  }
}

async function keyOf(folder: string, manifest: BackupManifest, given: Buffer | null): Promise<Buffer> {
  const key = given ?? (await savedKey(folder, manifest));
  if (keyCheck(key) === manifest.secret_key.check) return key;
  const which = given === null ? backupPaths(folder).secret_key : 'BERTH_SECRET_KEY';
  throw new BackupError(`${which} is not the key of this backup: its disks would be unreadable`, 'usage');
}

async function savedKey(folder: string, { secret_key }: BackupManifest): Promise<Buffer> {
  if (!secret_key.included) {
    throw new BackupError('the backup was made without the secret key: set BERTH_SECRET_KEY to it', 'usage');
  }
  const path = backupPaths(folder).secret_key;
  const text = (await readFile(path, 'utf8').catch(() => '')).trim();
  if (!/^[0-9a-f]{64}$/.test(text)) {
    throw new BackupError(`${path} is missing or damaged: restore it, or set BERTH_SECRET_KEY`, 'damaged');
  }
  return Buffer.from(text, 'hex');
}

async function refuseUnlessEmpty(data_dir: string): Promise<void> {
  const names = await readdir(data_dir).catch((error: unknown): string[] => {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  });
  if (names.every((name) => name === 'lost+found')) return;
  const unfinished = names.includes(UNFINISHED_RESTORE);
  const why = unfinished ? 'has what an earlier restore did not finish: remove it' : 'is not empty';
  throw new BackupError(`${data_dir} ${why}; set BERTH_DATA_DIR to an empty folder`, 'state');
}

async function refuseUnlessDatabaseEmpty(url: string): Promise<void> {
  if ((await queryTableCount(url)) === 0) return;
  throw new BackupError('the database of DATABASE_URL is not empty; set it to an empty one', 'state');
}

async function readObjectList(folder: string, manifest: BackupManifest): Promise<BackupObject[]> {
  const path = backupPaths(folder).object_list;
  if ((await fileSha256(path)) !== manifest.objects.sha256)
    throw new BackupError(`${path} is damaged`, 'damaged');
  const objects: BackupObject[] = [];
  for await (const line of readLines(path)) objects.push(JSON.parse(line) as BackupObject);
  return objects;
}

async function copyImages(
  { folder, signal, onProgress }: RestoreBackupOptions,
  { images }: BackupManifest,
  paths: Paths,
): Promise<string[]> {
  onProgress('bringing base images back');
  const damaged: string[] = [];
  for (const image of images) {
    signal.throwIfAborted();
    const parent = join(paths.images, image.id);
    if ((await lstat(parent).catch(() => undefined)) === undefined) await mkdir(parent, { mode: 0o711 });
    const problem = await copyImage(backupPaths(folder).images, paths.images, image);
    if (problem !== null) damaged.push(`images/${image.id}/${image.name}`);
    else if (image.newest === true) await makeNewest(paths.images, image);
  }
  return damaged;
}

/**
 * Objects may go into an unmarked store, or into the backup's own. Objects that were not saved are only in the backup's own.
 * Returns whether the store has its mark; if not, the first start marks it.
 */
async function refuseOtherStore(store: ObjectStore, { objects }: BackupManifest): Promise<boolean> {
  const there = await readMark(store);
  const own = objects.store ?? null;
  if (there !== null && there !== own) {
    throw new BackupError(
      `${store.description} belongs to another installation of Berth: use an empty one`,
      'state',
    );
  }
  if (there === null && own !== null && !objects.included) {
    throw new BackupError(
      `${store.description} is not the object store of this backup, and its objects were not saved`,
      'usage',
    );
  }
  return there !== null;
}

async function copyObjects(
  { folder, signal, onProgress }: RestoreBackupOptions,
  store: ObjectStore,
  { objects: { included, count } }: BackupManifest,
  objects: readonly BackupObject[],
): Promise<string[]> {
  return restoreObjects({
    store,
    objects,
    signal,
    folder: included ? backupPaths(folder).objects : null,
    onProgress: (done) =>
      onProgress(`${included ? 'copying objects' : 'checking objects'}: ${done} of ${count}`),
  });
}

interface Loading extends RestoreBackupOptions {
  readonly manifest: BackupManifest;
  /** The store has the mark of the backup's. */
  readonly marked: boolean;
  readonly store: ObjectStore;
  /** Images that the restore has put into the store, by version; null: the objects never left it. */
  readonly images: ReadonlyMap<string, StoredImage> | null;
}

async function loadDatabase(loading: Loading, paths: Paths): Promise<number> {
  const { config, onProgress } = loading;
  onProgress('loading the database');
  if (config.database_url !== null) return load(loading, config.database_url);
  const postgres = await startEmbeddedPostgres(paths, { say: onProgress });
  try {
    return await load(loading, postgres.database_url);
  } finally {
    await postgres.stop();
  }
}

/** Loads into the schema of the backup, and then migrates it. */
async function load(
  { folder, manifest: { migrations, database }, marked, store, images }: Loading,
  url: string,
): Promise<number> {
  await migrate(url, { only: new Set(migrations.map(({ name }) => name)) });
  try {
    const rows = await loadData(url, readLines(backupPaths(folder).database));
    if (rows !== database.rows) throw new DataError(`${rows} rows where ${database.rows} were saved`);
  } catch (error) {
    if (!(error instanceof DataError)) throw error;
    throw new BackupError(`the database cannot be loaded: ${error.message}`, 'damaged', { cause: error });
  }
  await migrate(url);
  const db = openPool(url, () => undefined, 2);
  try {
    await clearAllDirtyBytes(db);
    await invalidateOverlays(db);
    await giveUpLocalHost(db);
    if (!marked) await deleteStoreMark(db);
    if (images !== null) await keepStoredImages(db, store, images);
    return await failLost(db, LOST_MESSAGE, 'operator');
  } finally {
    await db.destroy();
  }
}

/** The images of the database are those that the store has now: the restored ones, and those that were there. */
async function keepStoredImages(
  db: Db,
  store: ObjectStore,
  restored: ReadonlyMap<string, StoredImage>,
): Promise<void> {
  for (const row of await listIndexes(db)) {
    const stored = restored.get(row.version);
    if (stored) await setStored(db, row.version, stored);
    else if (!(await isImageStored(store, row))) await deleteVersion(db, row.id, row.version);
  }
}
