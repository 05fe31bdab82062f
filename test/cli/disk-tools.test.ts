/** `berth disk verify|export|import` through `bin/berth`, on disks whose every generation a model knows byte for byte. */
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { ImageCheck, type VerifiedDisk, verifyEach, verifyInstance } from '../../src/cli/server/disks.ts';
import { Terminal } from '../../src/cli/terminal.ts';
import { pathsIn } from '../../src/config/paths.ts';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { compactDisk } from '../../src/control-plane/disks/compact-disk.ts';
import { dropOldGenerations } from '../../src/control-plane/disks/generation-store.ts';
import { keepObjects } from '../../src/control-plane/disks/keep-objects.ts';
import { expireWriters, writeObjects } from '../../src/control-plane/disks/segment-store.ts';
import { registerImage } from '../../src/control-plane/images/register-image.ts';
import { importDisk } from '../../src/control-plane/instances/import-disk.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { BLOCK_BYTES } from '../../src/disk-format/segment-format.ts';
import { ensureSecrets, makeDataFolder } from '../../src/launcher/data-folder.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { AppError } from '../../src/shared/errors.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { QUOTA_DEFAULTS } from '../../src/shared/quotas.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { writeHostImage } from '../support/host-image.ts';
import { BASE, freeEverything, ModelDisk } from '../support/model-disks.ts';

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');
const GIB = 2 ** 30;

const api = await apiForFile();
const owner = await api.person();
const data_dir = await mkdtemp(join(tmpdir(), 'berth-disks-'));
const paths = pathsIn(data_dir);
const pool = new CompressPool();
after(async () => {
  await pool.close();
  await rm(data_dir, { recursive: true, force: true });
});
await makeDataFolder(paths);
await ensureSecrets(paths, null, false);
const store = await FolderStore.open(paths.objects);
const model = { api, owner, store, pool };
const IMAGE = join(paths.debian_12, 'one');
const image = await writeHostImage(IMAGE, 'debian-12', BASE);
const VERSION = image.files['rootfs.img'];
await transaction(api.db, (tx) =>
  registerImage(tx, {
    ...{ id: 'debian-12', version: VERSION, recipe: 'recipe', newest: true, index_sha256: 'b'.repeat(64) },
    ...{ size_bytes: BASE.length, stored_bytes: 1 },
  }),
);

const SETTINGS = {
  PATH: process.env['PATH'] ?? '',
  BERTH_DATA_DIR: data_dir,
  DATABASE_URL: api.database.url,
  BERTH_SECRET_KEY: api.secret_key.toString('hex'),
};
interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}
function berth(...args: string[]): Promise<Ran> {
  return new Promise((resolve) => {
    execFile(BERTH, args, { env: SETTINGS }, (error, out, err) =>
      resolve({ code: error === null ? 0 : Number(error.code), out, err }),
    );
  });
}
const kept = await keepObjects(api.db);
await kept.release();
const context = {
  ...{ db: api.db, disk_keys: api.context.disk_keys, store, paths },
  kept: { ...kept, check: async () => undefined },
};
const quietly = { terminal: new Terminal('quiet'), signal: new AbortController().signal };
/** What the command does, in this process. */
async function verdict(
  whole: boolean,
  id: InstanceId,
  generation: number | null = null,
): Promise<VerifiedDisk> {
  const one = { id, name: id, generation, ...quietly };
  const found = await verifyInstance(context, new ImageCheck(context), one);
  assert.equal(found.whole, whole, JSON.stringify(found));
  return found;
}
/** Of the right base image, with three generations: encrypted, plain, with zeroes. */
async function disk(): Promise<ModelDisk> {
  const made = await ModelDisk.make(model, 24);
  await made.flush([0, 1, 2, 5, 6], 'noise');
  await made.flush([1, 7, 8], 'text', false);
  await made.flush([2, 3], 'zeroes');
  const image = { image_version: VERSION, size_bytes: BASE.length };
  await api.db.updateTable('disks').set(image).where('instance_id', '=', made.id).execute();
  return made;
}
/** As small as those of the model, though it says a GiB. */
async function fresh(): Promise<{ readonly id: InstanceId }> {
  const { id } = await api.instance(owner, { disk_gib: 1 });
  await api.db.updateTable('disks').set({ size_bytes: BASE.length }).where('instance_id', '=', id).execute();
  return { id };
}
const nameOf = async (id: string) =>
  (await api.as(owner).get<{ name: string }>(`/v1/instances/${id}`)).body.name;
const layers = (id: ModelDisk['id'], generation: number) =>
  api.db
    .selectFrom('generations')
    .select(['segments', 'map', 'trigger'])
    .where('instance_id', '=', id)
    .where('generation', '=', generation)
    .executeTakeFirstOrThrow();
/** Changes one byte of an object, in place; undone by the same again. */
async function flip(key: string, at: number): Promise<void> {
  const path = join(paths.objects, key);
  const bytes = await readFile(path);
  bytes.writeUInt8(bytes.readUInt8(at) ^ 0x40, at);
  await writeFile(path, bytes);
}
const blocks = (first: number, count: number) => ({
  offset: first * BLOCK_BYTES,
  length: count * BLOCK_BYTES,
});
describe('berth disk verify', () => {
  test('a disk that is whole is told to be, by name and by id, also when compacted', async () => {
    const { id } = await disk();
    const name = await nameOf(id);
    const ran = await berth('disk', 'verify', name);
    assert.deepEqual([ran.code, ran.err], [0, '']);
    assert.match(ran.out, new RegExp(`^${name}, generation 3: intact \\(3 objects, 8 blocks, .* read\\)\n$`));
    assert.equal((await verdict(true, id, 1)).objects, 1);
    await api.as(owner).patch(`/v1/instances/${id}`, { generations_keep: { last: 1, daily_days: 0 } });
    await dropOldGenerations(api.db);
    assert.equal(await compactDisk({ db: api.db, store, disk_keys: api.context.disk_keys }, id), true);
    assert.ok((await verdict(true, id)).objects >= 2, 'a map and what it names');
  });

  test('every kind of damage is told with its object and the bytes of the disk that it concerns, and exits 8', async () => {
    const { id } = await disk();
    const [first, second] = [await layers(id, 1), await layers(id, 2)].map(
      ({ segments }) => segments[0]?.key ?? '',
    );
    assert(first && second);
    // Of the five blocks of the first segment 0, 5 and 6 are in the last generation: 1 and 2 came again.
    await flip(first, 100);
    const rotten = await verdict(false, id);
    assert.deepEqual(
      rotten.damages.map(({ key, bytes }) => [key, bytes]),
      [[first, [blocks(0, 1)]]],
    );
    assert.match(rotten.damages[0]?.problem ?? '', /was not encrypted/);
    await flip(first, 100);
    await flip(first, BLOCK_BYTES + 200);
    assert.equal((await verdict(true, id)).whole, true, 'a frame that the generation does not need');
    assert.equal((await verdict(false, id, 1)).damages.length, 1);
    await flip(first, BLOCK_BYTES + 200);

    const { size } = await stat(join(paths.objects, first));
    await flip(first, size - 300);
    const directory = await verdict(false, id);
    assert.deepEqual(
      directory.damages.map(({ key, bytes }) => [key, bytes]),
      [[first, null]],
    );
    await flip(first, size - 300);

    const kept = await readFile(join(paths.objects, second));
    await truncate(join(paths.objects, second), kept.length - 10);
    assert.ok((await verdict(false, id)).damages.every(({ key }) => key === second));
    await rm(join(paths.objects, second));
    const human = await berth('disk', 'verify', id);
    assert.equal(human.code, 8);
    assert.match(human.out, /DAMAGED[\s\S]*the object is missing/);
    await writeFile(join(paths.objects, second), kept);

    await api.db.deleteFrom('segment_holders').where('key', '=', second).execute();
    assert.match((await verdict(false, id)).problems.join(), /not recorded as held/);
    await api.db.insertInto('segment_holders').values({ key: second, instance_id: id }).execute();
    await writeFile(join(IMAGE, 'rootfs.img'), Buffer.concat([BASE.subarray(1), Buffer.alloc(1)]));
    assert.match((await verdict(false, id)).problems.join(), /base image has changed since it was built/);
    await writeFile(join(IMAGE, 'rootfs.img'), BASE);
    assert.equal((await verdict(true, id)).whole, true);
  });

  test('of a compacted disk a segment that only its map names is told with the bytes that lie in it', async () => {
    const { id } = await disk();
    await api.as(owner).patch(`/v1/instances/${id}`, { generations_keep: { last: 1, daily_days: 0 } });
    await dropOldGenerations(api.db);
    assert.equal(await compactDisk({ db: api.db, store, disk_keys: api.context.disk_keys }, id), true);
    await freeEverything(model);
    const held = await api.db
      .selectFrom('segment_holders')
      .select('key')
      .where('instance_id', '=', id)
      .execute();
    const [segment] = held.map(({ key }) => key).filter((key) => key.includes('/seg/'));
    const { map } = await layers(id, 3);
    assert(segment && map);
    await rm(join(paths.objects, segment));
    const missing = await verdict(false, id);
    assert.deepEqual(
      missing.damages.map(({ key }) => key),
      [segment],
    );
    assert.ok((missing.damages[0]?.bytes?.length ?? 0) > 0);
    await flip(map.key, 200);
    assert.equal((await verdict(false, id)).damages.find(({ key }) => key === map.key)?.bytes, null);
  });

  test('a disk that was compacted while it was read is whole: what that has let go of is no damage', async () => {
    const made = await disk();
    const { id } = made;
    await api.as(owner).patch(`/v1/instances/${id}`, { generations_keep: { last: 1, daily_days: 0 } });
    const compact = async () => {
      await dropOldGenerations(api.db);
      assert.ok(await compactDisk({ db: api.db, store, disk_keys: api.context.disk_keys }, id));
    };
    await compact();
    await made.flush([4], 'noise');
    await api.db.updateTable('disks').set({ image_version: VERSION }).where('instance_id', '=', id).execute();
    const replaced = (await layers(id, 3)).map;
    const meanwhile = { ...context, kept: { ...context.kept, check: compact } };
    const one = { id, name: id, generation: null, ...quietly };
    const found = await verifyInstance(meanwhile, new ImageCheck(context), one);
    assert.deepEqual([found.generation, found.whole, found.problems], [4, true, []]);
    const held = api.db.selectFrom('segment_holders').where('key', '=', replaced?.key ?? '');
    assert.deepEqual(await held.select('key').execute(), []);
  });

  test('all instances at once; one that nobody has, or words that contradict each other, are refused', async () => {
    const ran = await berth('disk', 'verify', '--all', '--json');
    assert.ok((JSON.parse(ran.out) as unknown[]).length >= 3);
    assert.equal((await berth('disk', 'verify', 'nobody')).code, 3);
    assert.equal((await berth('disk', 'verify')).code, 2);
    assert.equal((await berth('disk', 'verify', 'a', '--all')).code, 2);
    const { id } = await disk();
    assert.equal((await berth('disk', 'verify', id, '--generation', '99')).code, 3);
  });

  test('of all instances those that were deleted meanwhile are passed over; one that was asked for is not', async () => {
    const [going, whole] = [await disk(), await disk()];
    await api.as(owner).delete(`/v1/instances/${going.id}`);
    const listed = [newId('inst'), going.id, whole.id].map((id) => ({ id, name: id }));
    const all = await verifyEach(context, listed, { instance: null, generation: null, ...quietly });
    assert.deepEqual(
      all.map(({ id }) => id),
      [whole.id],
    );
    for (const one of listed.slice(0, 2)) {
      const asked = verifyEach(context, [one], { instance: one.id, generation: null, ...quietly });
      await assert.rejects(asked, AppError);
    }
  });

  test('while a reader keeps objects none is removed', async () => {
    const made = await disk();
    const kept = await keepObjects(api.db);
    const key = (await layers(made.id, 1)).segments[0]?.key ?? '';
    await made.remove();
    await freeEverything(model);
    assert.ok((await stat(join(paths.objects, key))).size > 0);
    await kept.check();
    await kept.release();
    await made.remove();
    await assert.rejects(stat(join(paths.objects, key)), { code: 'ENOENT' });
  });
});

describe('berth disk export and import', () => {
  test('an export is the disk byte for byte, of any generation, raw with holes or qcow2', async () => {
    const made = await disk();
    const [raw, old, qcow2] = ['raw', 'old', 'qcow2'].map((name) => join(data_dir, `export.${name}`)) as [
      string,
      string,
      string,
    ];
    const ran = await berth('disk', 'export', made.id, raw);
    assert.deepEqual([ran.code, ran.err], [0, ''], ran.out);
    assert.ok((await readFile(raw)).equals(made.content));
    const { blocks: sectors, mode } = await stat(raw);
    assert.ok(sectors * 512 < BASE.length - BLOCK_BYTES, 'what is zero is a hole');
    assert.equal(mode & 0o777, 0o600);
    assert.equal((await berth('disk', 'export', made.id, old, '--generation', '1')).code, 0);
    assert.ok((await readFile(old)).equals(made.shown.get(1)?.content ?? Buffer.alloc(0)));
    assert.equal((await berth('disk', 'export', made.id, qcow2, '--format', 'qcow2')).code, 0);
    execFileSync('qemu-img', ['compare', '-f', 'raw', '-F', 'qcow2', raw, qcow2]);
    assert.equal((await stat(qcow2)).mode & 0o777, 0o600);
    await assert.rejects(stat(`${qcow2}.raw-part`), { code: 'ENOENT' });
    const audited = await api.db
      .selectFrom('audit_log')
      .select('action')
      .where('target', '=', made.id)
      .execute();
    assert.equal(audited.filter(({ action }) => action === 'disk.export').length, 3);
    assert.equal((await berth('disk', 'export', made.id, raw)).code, 5, 'nothing is written over');

    const key = (await layers(made.id, 1)).segments[0]?.key ?? '';
    await flip(key, 100);
    const refused = await berth('disk', 'export', made.id, join(data_dir, 'damaged'));
    assert.equal(refused.code, 8);
    assert.match(refused.err, /damaged: segment .* block 0/);
    await assert.rejects(stat(join(data_dir, 'damaged')), { code: 'ENOENT' });
    await flip(key, 100);
    for (const path of [old, raw]) await rm(path);
  });

  test('an import makes a generation of a file, of what differs alone, and a new instance of another disk', async () => {
    const made = await disk();
    const qcow2 = join(data_dir, 'export.qcow2');
    const empty = await fresh();
    const first = await berth('disk', 'import', empty.id, qcow2, '--json');
    assert.equal(first.code, 0, first.out);
    assert.match(first.err, /^berth: \S+export\.qcow2 is no ext4 file system, so .*\n$/);
    assert.equal((JSON.parse(first.out) as { generation: number }).generation, 1);
    const back = join(data_dir, 'back.raw');
    assert.equal((await berth('disk', 'export', empty.id, back)).code, 0);
    execFileSync('qemu-img', ['compare', '-f', 'raw', '-F', 'qcow2', back, qcow2]);
    assert.equal((await verdict(true, empty.id)).generation, 1);

    // Of this disk the file differs in what the other one has.
    const edited = await readFile(back);
    randomBytes(BLOCK_BYTES).copy(edited, 9 * BLOCK_BYTES);
    edited.fill(0, 0, BLOCK_BYTES);
    edited.writeUInt16LE(0xef53, 1_024 + 56);
    await writeFile(back, edited.subarray(0, 10 * BLOCK_BYTES));
    const second = await berth('disk', 'import', empty.id, back, '--json');
    assert.equal(second.err, '', 'it has the magic number of ext4');
    assert.deepEqual(
      JSON.parse(second.out).changed_bytes,
      4 * BLOCK_BYTES,
      'two edited, two past the end of the file',
    );
    const third = join(data_dir, 'third.raw');
    await berth('disk', 'export', empty.id, third);
    const expected = Buffer.alloc(BASE.length);
    edited.copy(expected, 0, 0, 10 * BLOCK_BYTES);
    assert.ok((await readFile(third)).equals(expected));
    assert.match((await berth('disk', 'import', empty.id, third)).out, /already equals .*, as generation 2/);
    const events = await api.db
      .selectFrom('events')
      .selectAll()
      .where('instance_id', '=', empty.id)
      .execute();
    const imports = events.filter(({ type, actor }) => type === 'disk.flushed' && actor === 'operator');
    assert.equal(imports.length, 2);
    assert.equal((await layers(empty.id, 2)).trigger, 'import');
    assert.equal((await verdict(true, made.id)).whole, true);
    for (const path of [back, third]) await rm(path);
  });

  test('what nothing needs any more is removed before its time only when the operator says so', async () => {
    const { id } = await disk();
    const key = `disks/${id}/seg/1/1-00000000-0`;
    await api.db.insertInto('segments').values({ key, size_bytes: 5 }).execute();
    await store.put(key, [Buffer.from('bytes')]);
    const early = await berth('disk', 'free', '--older-than', '9m');
    assert.equal(early.code, 2);
    assert.match(early.err, /10m or more/);
    assert.match((await berth('disk', 'free')).out, /^Removed 0 objects\. \S+ \S+ awaits its removal\.$/m);
    assert.equal(await store.size(key), 5);
    await sql`update segments set unheld_at = now() - interval '11 minutes' where key = ${key}`.execute(
      api.db,
    );
    const reader = await keepObjects(api.db);
    assert.equal((await berth('disk', 'free')).code, 5, 'a backup may read it');
    await reader.release();
    assert.match((await berth('disk', 'free')).out, /^Removed 1 object\. /);
    await assert.rejects(store.size(key));
  });

  test('an import over an image that is not stored yet is refused, before anything is packed and at its end', async (t) => {
    const { id } = await fresh();
    const file = join(data_dir, 'early.raw');
    await writeFile(file, randomBytes(BLOCK_BYTES));
    const stored = (removed_at: Date | null) =>
      api.db.updateTable('image_versions').set({ removed_at }).where('version', '=', VERSION).execute();
    await stored(new Date());
    t.after(() => stored(null));
    const refused = await berth('disk', 'import', id, file);
    assert.equal(refused.code, 5);
    assert.match(refused.err, /is not in the object store yet/);
    const made = { id, generation: 0, epoch: 0, image_version: VERSION, disk_gib: 1 };
    const late = writeObjects(api.db, id as InstanceId, (writer) =>
      transaction(api.db, (tx) =>
        importDisk(tx, QUOTA_DEFAULTS, { ...made, writer, segments: [], changed_bytes: 0 }, 'operator'),
      ),
    );
    await assert.rejects(late, /is not in the object store yet/);
    await stored(null);
    const swept = writeObjects(api.db, id as InstanceId, async (writer) => {
      await sql`update object_writers set since = now() - interval '2 days' where id = ${writer}`.execute(
        api.db,
      );
      await expireWriters(api.db);
      await transaction(api.db, (tx) =>
        importDisk(tx, QUOTA_DEFAULTS, { ...made, writer, segments: [], changed_bytes: 0 }, 'operator'),
      );
    });
    await assert.rejects(swept, /longer than a day, and what it had stored may be gone/);
    assert.equal((await berth('disk', 'import', id, file)).code, 0);
    await rm(file);
  });

  test('what does not fit, is not stopped, or names other files is refused, and leaves nothing', async () => {
    const { id } = await disk();
    const large = join(data_dir, 'large.raw');
    await writeFile(large, 'x');
    await truncate(large, GIB + 1);
    const refused = await berth('disk', 'import', id, large);
    assert.equal(refused.code, 5);
    assert.match(refused.err, /larger than the disk of .*\n {2}next: berth disk import \S+ \S+ --grow\n/);
    assert.equal((await berth('disk', 'import', id, large, '--grow')).code, 0);
    const grown = await api.as(owner).get<InstanceOut>(`/v1/instances/${id}`);
    assert.deepEqual([grown.body.disk_gib, grown.body.disk.size_bytes], [2, 2 * GIB]);

    const linked = join(data_dir, 'linked.qcow2');
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', '-b', '/etc/passwd', '-F', 'raw', linked]);
    const named = await berth('disk', 'import', id, linked);
    assert.equal(named.code, 1);
    assert.match(named.err, /needs another file/);
    const split = join(data_dir, 'split.qcow2');
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', '-o', `data_file=${split}.raw`, split, '1M']);
    assert.match((await berth('disk', 'import', id, split)).err, /needs another file/);
    assert.equal((await berth('disk', 'import', id, join(data_dir, 'none'))).code, 3);

    await api.as(owner).post(`/v1/instances/${id}/vm`);
    const running = await berth('disk', 'import', id, large);
    assert.equal(running.code, 5);
    assert.match(running.err, /starting. Stop it before you import a disk/);
    await rm(large);
  });
});
