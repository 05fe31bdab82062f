/**
 * Implements `berth disk verify` and `berth disk free`, which run on the server. `withDisks` opens the object store for
 * the commands that read or import disks, and keeps the control plane from removing objects meanwhile.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import type { Db } from '../../control-plane/db/pool.ts';
import { type DiskKeys, diskKeys } from '../../control-plane/disks/data-keys.ts';
import { type KeptObjects, keepObjects, objectsAreKept } from '../../control-plane/disks/keep-objects.ts';
import { freeSegments } from '../../control-plane/disks/remove-objects.ts';
import { notHeldBy, sumUnheld } from '../../control-plane/disks/segment-store.ts';
import { knownMarks } from '../../control-plane/disks/store.ts';
import { type OpenedDisk, openDisk } from '../../control-plane/instances/import-disk.ts';
import { CompressPool } from '../../disk-format/compress-pool.ts';
import { type Damage, verifyDisk } from '../../disk-format/verify-disk.ts';
import { findHostImage, type LocalImage } from '../../host/images/host-images.ts';
import { type ObjectStore, ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { openStore } from '../../object-store/open-store.ts';
import { ownStore } from '../../object-store/store-mark.ts';
import { AppError, messageOf } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import { CommandError, EXIT } from '../command-error.ts';
import { bytes, plural } from '../table.ts';
import type { Terminal } from '../terminal.ts';
import { type ServerContext, withServer } from './context.ts';

export interface ServersDisks extends ServerContext {
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
export async function withDisks<T>(work: (context: ServersDisks) => Promise<T>): Promise<T> {
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
async function openServersStore({ db, config, paths }: ServerContext): Promise<ObjectStore> {
  const settings = { s3: config.s3, folder: paths.objects, log: createLog('cli', 'error') };
  return ownStore(knownMarks(db), await openStore(settings));
}

/** By id, or by a name that only one organisation has. Null: all, by name. */
async function findInstances(
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
  { paths }: Pick<ServersDisks, 'paths'>,
  image: string,
  version: string | null,
): Promise<LocalImage> {
  const found = await findHostImage(paths.images, image, version);
  if (found) return found;
  const which = version === null ? '' : ` of version ${version.slice(0, 12)}`;
  throw new CommandError(
    `the image "${image}"${which} is not on this machine; a start of the instance fetches it from object storage`,
  );
}

/** Removes what nothing has needed for `seconds`. */
export async function freeObjects(terminal: Terminal, seconds: number): Promise<void> {
  await withServer(async (server) => {
    const { db } = server;
    const store = await openServersStore(server);
    const objects = await freeSegments(db, store, createLog('cli', 'error'), seconds * 1_000);
    if (objects === 0 && (await objectsAreKept(db))) {
      const message = 'a backup, an export or a verification reads objects now, so nothing is removed';
      throw new CommandError(message, { exit_code: EXIT.state, next: 'the same command, when it has ended' });
    }
    const left_bytes = await sumUnheld(db);
    const left = left_bytes === 0 ? 'Nothing else' : bytes(left_bytes);
    const sentence = `Removed ${plural(objects, 'object')}. ${left} awaits its removal.`;
    terminal.done(sentence, { objects, awaiting_removal_bytes: left_bytes }, String(objects));
  });
}

export interface VerifiedDisk {
  readonly id: InstanceId;
  readonly name: string;
  readonly generation: number;
  readonly whole: boolean;
  readonly objects: number;
  readonly blocks: number;
  readonly read_bytes: number;
  readonly damages: readonly Damage[];
  /** Problems other than damaged objects. */
  readonly problems: readonly string[];
}

export interface VerifyRequest {
  /** Null: every instance. */
  readonly instance: string | null;
  readonly generation: number | null;
  readonly terminal: Terminal;
  readonly signal: AbortSignal;
}

/** Exit code {@link EXIT.damaged} when anything is damaged or missing. */
export async function verifyDisks(request: VerifyRequest): Promise<number> {
  const { instance, terminal } = request;
  const verdicts = await withDisks(async (context) =>
    verifyEach(context, await findInstances(context.db, instance), request),
  );
  if (terminal.format === 'json') terminal.json(instance === null ? verdicts : verdicts[0]);
  if (verdicts.length === 0) terminal.say('No instances.');
  return verdicts.every(({ whole }) => whole) ? EXIT.done : EXIT.damaged;
}

type VerifyContext = Pick<ServersDisks, 'db' | 'disk_keys' | 'store' | 'kept' | 'paths'>;

type Found = Awaited<ReturnType<typeof findInstances>>[number];

/** With --all, skips instances that were deleted after they were listed. */
export async function verifyEach(
  context: VerifyContext,
  listed: readonly Found[],
  { instance, generation, terminal, signal }: VerifyRequest,
): Promise<VerifiedDisk[]> {
  const verdicts: VerifiedDisk[] = [];
  const images = new ImageCheck(context);
  for (const { id, name } of listed) {
    try {
      const verdict = await verifyInstance(context, images, { id, name, generation, terminal, signal });
      verdicts.push(verdict);
      if (terminal.format === 'human') terminal.write(describe(verdict));
      if (terminal.format === 'quiet' && !verdict.whole) terminal.write(`${name}\n`);
    } catch (error) {
      if (instance !== null || !isGone(error)) throw error;
    }
  }
  return verdicts;
}

function isGone(error: unknown): boolean {
  return error instanceof AppError && (error.code === 'NOT_FOUND' || error.code === 'CONFLICT');
}

interface One extends Found {
  readonly generation: number | null;
  readonly terminal: Terminal;
  readonly signal: AbortSignal;
}

export async function verifyInstance(
  context: VerifyContext,
  images: ImageCheck,
  one: One,
): Promise<VerifiedDisk> {
  const { db, disk_keys, store } = context;
  const { id, name, terminal, signal } = one;
  const progress = terminal.progress(`verifying ${name}`);
  const pool = new CompressPool();
  try {
    const disk = await openDisk(db, disk_keys, id, one.generation);
    const { objects, ...verdict } = await verifyDisk({
      store,
      pool,
      signal,
      keys: disk.keys,
      layers: disk.layers,
      size_bytes: disk.instance.size_bytes,
      onProgress: ({ read_bytes, total_bytes }) =>
        progress.say(`verifying ${name}: ${bytes(read_bytes)} of ${bytes(total_bytes)}`),
    });
    await context.kept.check();
    const problems = (await unheld(context, id, disk, objects)).map(
      (key) => `${key}: is not recorded as held by the instance, so it would be removed`,
    );
    if (disk.generation > 0)
      problems.push(...(await images.problems(disk.instance.image, disk.image_version)));
    const whole = verdict.damages.length === 0 && problems.length === 0;
    return { id, name, generation: disk.generation, whole, objects: objects.length, ...verdict, problems };
  } finally {
    progress.end();
    await pool.close();
  }
}

/**
 * The generation's objects that the instance does not hold. Compaction may replace objects while the disk is read, so only
 * objects that the generation still names are reported.
 */
async function unheld(
  { db, disk_keys }: VerifyContext,
  id: InstanceId,
  { generation, layers }: OpenedDisk,
  objects: readonly string[],
): Promise<readonly string[]> {
  const missing = await notHeldBy(db, id, objects);
  if (missing.length === 0) return [];
  const now = await openDisk(db, disk_keys, id, generation).catch((error: unknown) => {
    if (isGone(error)) return null;
    throw error;
  });
  const named = new Set(now?.layers.map(({ key }) => key));
  if (layers.every(({ key }) => named.has(key))) return missing;
  return missing.filter((key) => named.has(key));
}

/** The base images on this machine. Each is read once. */
export class ImageCheck {
  readonly #context: Pick<ServersDisks, 'paths'>;
  readonly #known = new Map<string, string[]>();

  constructor(context: Pick<ServersDisks, 'paths'>) {
    this.#context = context;
  }

  async problems(image: string, version: string | null): Promise<string[]> {
    const id = `${image} ${version}`;
    const known = this.#known.get(id) ?? (await this.#look(image, version));
    this.#known.set(id, known);
    return known;
  }

  async #look(image: string, version: string | null): Promise<string[]> {
    try {
      const found = await baseImage(this.#context, image, version);
      const hash = createHash('sha256');
      for await (const chunk of createReadStream(found.rootfs_path, { highWaterMark: 1024 * 1024 }))
        hash.update(chunk);
      if (hash.digest('hex') === found.version) return [];
      return [
        `${found.rootfs_path}: the base image has changed since it was built; every block that the disk reads from it may be wrong`,
      ];
    } catch (error) {
      if (!(error instanceof CommandError)) throw error;
      return [messageOf(error)];
    }
  }
}

/** Only --json prints more spans. */
const SPANS_SHOWN = 8;

function describe({
  name,
  generation,
  whole,
  objects,
  blocks,
  read_bytes,
  damages,
  problems,
}: VerifiedDisk): string {
  if (generation === 0) return `${name}: nothing saved yet\n`;
  const read = `${plural(objects, 'object')}, ${plural(blocks, 'block')}, ${bytes(read_bytes)} read`;
  if (whole) return `${name}, generation ${generation}: intact (${read})\n`;
  const lines = damages.flatMap(({ key, problem, bytes: spans }) => [
    `  ${key}: ${problem}`,
    ...(spans === null
      ? ['    it records where blocks are stored: any byte of the disk may be affected']
      : []),
    ...(spans ?? []).slice(0, SPANS_SHOWN).map(spanText),
    ...((spans?.length ?? 0) > SPANS_SHOWN
      ? [`    and ${(spans?.length ?? 0) - SPANS_SHOWN} more: --json`]
      : []),
    ...(spans?.length === 0 ? ['    no byte of the disk is affected yet'] : []),
  ]);
  return `${name}, generation ${generation}: DAMAGED (${read})\n${[...lines, ...problems.map((each) => `  ${each}`)].join('\n')}\n`;
}

function spanText({ offset, length }: { readonly offset: number; readonly length: number }): string {
  return `    bytes ${offset} to ${offset + length - 1} of the disk (${bytes(length)})`;
}
