/** The context of disk commands: the server's, and the object store, whose objects are kept while they run. */
import type { Db } from '../control-plane/db/pool.ts';
import { type DiskKeys, diskKeys } from '../control-plane/disks/data-keys.ts';
import { type KeptObjects, keepObjects } from '../control-plane/disks/keep-objects.ts';
import { knownMarks } from '../control-plane/disks/store.ts';
import { findHostImage, type HostImage } from '../host/images/host-images.ts';
import { type ObjectStore, ObjectStoreUnavailableError } from '../object-store/object-store.ts';
import { openStore } from '../object-store/open-store.ts';
import { ownStore } from '../object-store/store-mark.ts';
import { AppError } from '../shared/errors.ts';
import type { InstanceId } from '../shared/ids.ts';
import { createLog } from '../shared/log.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { type ServerContext, withServer } from './server-context.ts';

export interface DiskContext extends ServerContext {
  readonly store: ObjectStore;
  readonly disk_keys: DiskKeys;
  readonly kept: KeptObjects;
}

const EXITS: Readonly<Record<string, number>> = {
  NOT_FOUND: EXIT.not_found,
  CONFLICT: EXIT.state,
  QUOTA_EXCEEDED: EXIT.limit,
};

/** @throws CommandError for expected failures */
export async function withDisks<T>(work: (context: DiskContext) => Promise<T>): Promise<T> {
  return withServer(async (server) => {
    const { config, root_key } = server;
    const kept = await keepObjects(server.db);
    try {
      const store = await openServersStore(server);
      return await work({ ...server, store, disk_keys: diskKeys(root_key, config.encryption), kept });
    } catch (error) {
      if (error instanceof AppError)
        throw new CommandError(error.message, { exit_code: EXITS[error.code] ?? EXIT.failed });
      if (error instanceof ObjectStoreUnavailableError)
        throw new CommandError(error.message, { exit_code: EXIT.unavailable });
      throw error;
    } finally {
      await kept.release();
    }
  });
}

/** The object store of the installation, and no other. */
export async function openServersStore({ db, config, paths }: ServerContext): Promise<ObjectStore> {
  const settings = { s3: config.s3, folder: paths.objects, log: createLog('cli', 'error') };
  return ownStore(knownMarks(db), await openStore(settings));
}

/** By id, or by a name that only one organisation has. Null: all, by name. */
export async function findInstances(
  db: Db,
  text: string | null,
): Promise<{ readonly id: InstanceId; readonly name: string }[]> {
  let query = db.selectFrom('instances').select(['id', 'name']).orderBy('name').orderBy('id');
  if (text === null) return query.where('deleting', '=', false).execute();
  query = query.where((eb) => eb.or([eb('id', '=', text as InstanceId), eb('name', '=', text)])).limit(2);
  const [first, second] = await query.execute();
  if (!first)
    throw new CommandError(`there is no instance ${text}; berth ls lists them`, {
      exit_code: EXIT.not_found,
    });
  if (second) throw new CommandError(`several instances are called ${text}; give the id of one`);
  return [first];
}

export async function findOneInstance(db: Db, text: string) {
  const [found] = await findInstances(db, text);
  if (!found)
    throw new CommandError(`there is no instance ${text}; berth ls lists them`, {
      exit_code: EXIT.not_found,
    });
  return found;
}

/** The given version, or the newest for null. @throws CommandError when this machine lacks it */
export async function baseImage(
  { paths }: Pick<DiskContext, 'paths'>,
  image: string,
  version: string | null,
): Promise<HostImage> {
  const found = await findHostImage(paths.images, image, version);
  if (found) return found;
  const which = version === null ? '' : ` of version ${version.slice(0, 12)}`;
  throw new CommandError(
    `the image "${image}"${which} is not on this machine; a start of the instance fetches it from object storage`,
  );
}
