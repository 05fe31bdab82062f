/**
 * Implements `berth backup` and `berth restore-backup`, which run on the server: makes or restores the backup with the
 * server's settings, and reports what is missing or damaged.
 */
import { resolve } from 'node:path';
import { readEnv } from '../../config/env.ts';
import { makeBackup } from '../../control-plane/backup/make-backup.ts';
import { BackupError } from '../../control-plane/backup/manifest.ts';
import { restoreBackup } from '../../control-plane/backup/restore-backup.ts';
import { knownMarks } from '../../control-plane/disks/store.ts';
import { configOrRefuse } from '../../launcher/start.ts';
import { ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { openStore } from '../../object-store/open-store.ts';
import { ownStore } from '../../object-store/store-mark.ts';
import { createLog } from '../../shared/log.ts';
import { CommandError, EXIT } from '../command-error.ts';
import { bytes, plural, when } from '../table.ts';
import type { Terminal } from '../terminal.ts';
import { withServer } from './context.ts';

interface Request {
  readonly folder: string;
  readonly terminal: Terminal;
  readonly signal: AbortSignal;
}

export interface BackupRequest extends Request {
  readonly with_key: boolean;
  /** Include the objects of a bucket. */
  readonly with_objects: boolean;
}

/** Exit code {@link EXIT.damaged} when some objects or images could not be saved; all others were. */
export async function backup({
  terminal,
  signal,
  with_key,
  with_objects,
  ...request
}: BackupRequest): Promise<number> {
  const folder = resolve(request.folder);
  const progress = terminal.progress('backing up');
  const { manifest, missing_images, damaged_images } = await asCommand(() =>
    withServer(async ({ config, db, paths, database_url, secret_key }) => {
      const saves = config.s3 === null || with_objects;
      const log = createLog('cli', 'error');
      const settings = { s3: config.s3, folder: paths.objects, log };
      const store = saves ? ownStore(knownMarks(db), await openStore(settings)) : null;
      return makeBackup({
        folder,
        db,
        database_url,
        paths,
        secret_key,
        with_key,
        store,
        signal,
        onProgress: (what) => progress.say(what),
      });
    }),
  ).finally(() => progress.end());
  const { objects, secret_key } = manifest;
  const what = objects.included
    ? `${plural(objects.count, 'object')}, ${bytes(objects.bytes)}`
    : 'no objects';
  terminal.done(
    `Created the backup ${folder} of ${when(manifest.made_at)} (${what}).`,
    { folder, ...manifest, missing_images, damaged_images },
    folder,
  );
  terminal.warn(
    secret_key.included
      ? `${folder} contains the secret key: anyone who can read it can read every disk. Protect it like the machine itself.`
      : `${folder} does not contain the secret key, without which no disk can be read. Keep the key elsewhere (BERTH_SECRET_KEY).`,
  );
  if (!objects.included) {
    terminal.warn(
      'The backup does not contain the objects, which stay in the bucket. Objects that are deleted there later are missing after a restore. To include them: --with-objects.',
    );
  }
  for (const image of missing_images)
    terminal.warn(
      `The base image ${image}, which disks need, is neither on this machine nor in the object store.`,
    );
  for (const image of damaged_images) terminal.warn(`Not in the backup: ${image}.`);
  for (const key of objects.damaged) terminal.warn(`${key} is missing or cut short, and not in the backup.`);
  if (objects.damaged.length > 0) terminal.warn('To see which disks are affected: berth disk verify --all');
  return objects.damaged.length + missing_images.length + damaged_images.length > 0
    ? EXIT.damaged
    : EXIT.done;
}

/** Exit code {@link EXIT.damaged} when objects or images are missing or damaged; all others were restored. */
export async function restore({ terminal, signal, ...request }: Request): Promise<number> {
  const folder = resolve(request.folder);
  const env = readEnv();
  const config = configOrRefuse(env, process.cwd());
  const progress = terminal.progress('restoring');
  const { manifest, damaged, lost_vms } = await asCommand(() =>
    restoreBackup({
      folder,
      config,
      signal,
      log: createLog('cli', 'error'),
      onProgress: (what) => progress.say(what),
    }),
  ).finally(() => progress.end());
  const { made_at } = manifest;
  const value = { data_dir: config.data_dir, made_at, damaged, lost_vms };
  terminal.done(
    `Restored the backup of ${when(made_at)} into ${config.data_dir}. Start it with the same settings: npm start`,
    value,
    config.data_dir,
  );
  if (lost_vms > 0) {
    terminal.warn(
      `${plural(lost_vms, 'VM')} ran at that time, and ${lost_vms === 1 ? 'has' : 'have'} failed now: the next start continues from the last generation.`,
    );
  }
  for (const key of damaged) terminal.warn(`${key} is missing or damaged.`);
  if (damaged.length === 0) return EXIT.done;
  terminal.warn('To see which disks are affected, once it runs: berth disk verify --all');
  return EXIT.damaged;
}

const EXITS = { usage: EXIT.usage, state: EXIT.state, damaged: EXIT.damaged } as const;

async function asCommand<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof BackupError)
      throw new CommandError(error.message, { exit_code: EXITS[error.reason] });
    if (error instanceof ObjectStoreUnavailableError)
      throw new CommandError(error.message, { exit_code: EXIT.unavailable });
    throw error;
  }
}
