/** `berth backup` and `berth restore-backup` through `bin/berth`: everything but a guest. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cp,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { pathsIn } from '../../src/config/paths.ts';
import { makeBackup } from '../../src/control-plane/backup/make-backup.ts';
import type { BackupManifest } from '../../src/control-plane/backup/manifest.ts';
import { withSnapshot } from '../../src/control-plane/backup/table-data.ts';
import { insertVersion, makeCurrent } from '../../src/control-plane/images/store.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { isImageStored, storeImage } from '../../src/disk-format/image-objects.ts';
import { readHostImage } from '../../src/host/images/host-images.ts';
import { ensureSecrets, makeDataFolder, refuseUnfinishedRestore } from '../../src/launcher/data-folder.ts';
import { startEmbeddedPostgres } from '../../src/launcher/embedded-postgres.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { openStore } from '../../src/object-store/open-store.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { writeHostImage } from '../support/host-image.ts';
import { BASE, freeEverything, ModelDisk } from '../support/model-disks.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');
const api = await apiForFile();
const owner = await api.person();
const folder = await mkdtemp(join(tmpdir(), 'berth-backup-'));
const data_dir = join(folder, 'data');
const paths = pathsIn(data_dir);
const pool = new CompressPool();
after(async () => {
  await pool.close();
  await rm(folder, { recursive: true, force: true });
});
await makeDataFolder(paths);
await ensureSecrets(paths, null, false);
await writeFile(paths.secret_key, `${api.secret_key.toString('hex')}\n`);
const store = await FolderStore.open(paths.objects);
const model = { api, owner, store, pool };
const image = await writeHostImage(join(paths.debian_12, 'one'), 'debian-12', BASE);
await symlink('one', join(paths.debian_12, 'current'));
const VERSION = image.files['rootfs.img'];

interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}
function berth(settings: Record<string, string>, ...args: string[]): Promise<Ran> {
  const env = { PATH: process.env['PATH'] ?? '', ...settings };
  return new Promise((resolve) => {
    execFile(BERTH, args, { env, cwd: folder }, (error, out, err) =>
      resolve({ code: error === null ? 0 : Number(error.code), out, err }),
    );
  });
}
const backup = (...args: string[]) =>
  berth({ BERTH_DATA_DIR: data_dir, DATABASE_URL: api.database.url }, 'backup', ...args);
let targets = 0;
function newTarget(): string {
  targets += 1;
  return join(folder, `target-${targets}`);
}
const restore = (from: string, target: string, settings: Record<string, string> = {}) =>
  berth({ BERTH_DATA_DIR: target, ...settings }, 'restore-backup', from);
async function disk(): Promise<ModelDisk> {
  const made = await ModelDisk.make(model, 24);
  await made.flush([0, 1, 2, 5], 'noise');
  await made.flush([1, 7], 'text');
  const image = { image_version: VERSION, size_bytes: BASE.length };
  await api.db.updateTable('disks').set(image).where('instance_id', '=', made.id).execute();
  return made;
}
async function rowsOf(url: string): Promise<string[]> {
  const lines: string[] = [];
  await withSnapshot(url, async (snapshot) => {
    for await (const line of snapshot.lines()) lines.push(line);
  });
  return lines;
}
/** Names and contents below a folder. */
async function files(root: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for (const entry of await readdir(root, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.isFile())
      found[path.slice(root.length)] = createHash('sha256')
        .update(await readFile(path))
        .digest('hex');
  }
  return found;
}
const manifestOf = async (from: string) =>
  JSON.parse(await readFile(join(from, 'manifest.json'), 'utf8')) as BackupManifest;
const saved = join(folder, 'saved');

describe('berth backup and restore-backup', () => {
  test('what is saved is the machine as it was, whatever happens to it meanwhile, and comes back whole', async () => {
    const [kept, doomed] = [await disk(), await disk()];
    await api.as(owner).post(`/v1/instances/${kept.id}/vm`);
    // A heartbeat would change its host's row between the snapshot and what is compared with it.
    await api.agent.silence();
    let before: string[] = [];
    let objects: Record<string, string> = {};
    let heads: { instance_id: string; commit_id: string }[] = [];
    const HEADS = 'select instance_id, commit_id::text from disks order by 1';
    const made = await makeBackup({
      ...{ folder: saved, db: api.db, database_url: api.database.url, paths, store, with_key: true },
      ...{ secret_key: api.secret_key, signal: new AbortController().signal },
      onProgress: () => undefined,
      afterDatabase: async () => {
        before = await rowsOf(api.database.url);
        heads = await queryOnce<(typeof heads)[number]>(api.database.url, HEADS);
        objects = await files(join(paths.objects, 'disks'));
        // Deleted, flushed, and all that may be removed is removed: while the objects are still to be copied.
        await doomed.remove();
        await freeEverything(model);
        await kept.flush([3], 'noise');
        await api.db.updateTable('disks').set({ image_version: VERSION }).execute();
      },
    });
    assert.deepEqual(made.manifest.objects.damaged, []);
    await freeEverything(model);
    const target = newTarget();
    const ran = await restore(saved, target);
    assert.equal(ran.code, 0, ran.err);
    assert.match(ran.out, new RegExp(`^Restored the backup of 20.* into ${target}\\. `));
    assert.match(ran.err, /1 VM ran at that time/);
    const restored = pathsIn(target);
    assert.deepEqual(await files(join(restored.objects, 'disks')), objects);
    assert.deepEqual(await files(restored.debian_12), await files(paths.debian_12));
    assert.equal(await readlink(join(restored.debian_12, 'current')), 'one');
    assert.equal(await readFile(restored.secret_key, 'utf8'), await readFile(paths.secret_key, 'utf8'));
    assert.equal((await stat(restored.secret_key)).mode & 0o777, 0o600);
    const postgres = await startEmbeddedPostgres(restored, { say: () => undefined });
    try {
      const vms = await queryOnce(postgres.database_url, 'select state, reason_code from vms');
      assert.deepEqual(vms, [{ state: 'failed', reason_code: 'host_lost' }]);
      // A host elsewhere may have an overlay of what came after the backup: it is of none of these heads.
      const restored_heads = await queryOnce<(typeof heads)[number]>(postgres.database_url, HEADS);
      for (const [i, { instance_id, commit_id }] of heads.entries()) {
        assert.equal(restored_heads[i]?.instance_id, instance_id);
        assert.notEqual(restored_heads[i]?.commit_id, commit_id);
        const back = 'update disks set commit_id = $2, epoch = epoch - 1 where instance_id = $1';
        await queryOnce(postgres.database_url, back, [instance_id, commit_id]);
      }
      // A restore says that the machine is gone: the new one is the host local, and nothing waits for the other.
      const gone = 'select removed_at is not null and lost_at is not null as gone from hosts';
      assert.deepEqual(await queryOnce(postgres.database_url, gone), [{ gone: true }]);
      const changed = ['vms', 'events', 'instances', 'flushes', 'hosts', 'host_use', 'host_org_use'];
      assert.deepEqual(without(await rowsOf(postgres.database_url), changed), without(before, changed));
    } finally {
      await postgres.stop();
    }
    await refuseUnfinishedRestore(restored);
    const again = await restore(saved, target);
    assert.equal(again.code, 5);
    assert.match(again.err, /is not empty/);
    const untouched = newTarget();
    const other = await restore(saved, untouched, { DATABASE_URL: api.database.url });
    assert.deepEqual([other.code, /the database of DATABASE_URL is not empty/.test(other.err)], [5, true]);
    await assert.rejects(stat(untouched), { code: 'ENOENT' });
  });

  test('a folder that is in use, a backup that is none, and one of a newer program are refused', async () => {
    assert.equal((await backup(saved)).code, 5);
    const empty = join(folder, 'empty');
    await mkdir(empty);
    assert.match((await restore(empty, newTarget())).err, /is not a complete backup/);
    const newer = join(folder, 'newer');
    await cp(saved, newer, { recursive: true });
    const manifest = await manifestOf(newer);
    const migrations = [...manifest.migrations, { name: '999999-future.sql', sha256: 'f' }];
    await writeFile(join(newer, 'manifest.json'), JSON.stringify({ ...manifest, migrations }));
    const target = newTarget();
    const refused = await restore(newer, target);
    assert.equal(refused.code, 2);
    assert.match(
      refused.err,
      /another version of Berth \(migration 999999-future\.sql is unknown\): use that version/,
    );
    await assert.rejects(stat(target), { code: 'ENOENT' });
    await writeFile(join(newer, 'manifest.json'), JSON.stringify({ ...manifest, version: 2 }));
    assert.equal((await restore(newer, target)).code, 2);
  });

  test('what is damaged in a backup is found: an object is told, a database or a list is refused', async () => {
    const [name = ''] = Object.keys(await files(join(saved, 'objects')));
    const damaged = join(folder, 'damaged');
    await cp(saved, damaged, { recursive: true });
    await spoil(join(damaged, 'objects', name));
    const ran = await restore(damaged, newTarget());
    assert.equal(ran.code, 8, ran.err);
    assert.match(ran.err, new RegExp(`${name.slice(1)} is missing or damaged`));
    for (const file of ['database.jsonl.zst', 'objects.jsonl.zst']) {
      await rm(damaged, { recursive: true });
      await cp(saved, damaged, { recursive: true });
      await spoil(join(damaged, file));
      const target = newTarget();
      const refused = await restore(damaged, target);
      assert.deepEqual([refused.code, /is damaged/.test(refused.err)], [8, true], refused.err);
      await assert.rejects(stat(target), { code: 'ENOENT' });
    }
  });

  test('an image with a damaged file is told and left out, of a backup and of what it is restored to; the rest is there', async () => {
    const damaged = join(folder, 'damaged-image');
    await cp(saved, damaged, { recursive: true });
    await spoil(join(damaged, 'images', 'debian-12', 'one', 'vmlinuz'));
    const target = newTarget();
    const restored = await restore(damaged, target);
    assert.equal(restored.code, 8, restored.err);
    assert.match(restored.err, /images\/debian-12\/one is missing or damaged/);
    assert.deepEqual(await readdir(pathsIn(target).debian_12), []);
    await refuseUnfinishedRestore(pathsIn(target));

    const kernel = join(paths.debian_12, 'one', 'vmlinuz');
    const whole = await readFile(kernel);
    await spoil(kernel);
    const made = await backup(join(folder, 'imageless'));
    await writeFile(kernel, whole);
    assert.equal(made.code, 8, made.err);
    assert.match(made.err, /Not in the backup: images\/debian-12\/one: vmlinuz is damaged\./);
    assert.deepEqual((await manifestOf(join(folder, 'imageless'))).images, []);
    assert.equal((await restore(join(folder, 'imageless'), newTarget())).code, 0);
  });

  test('of a machine without images, a backup has them from the object store, and a restore puts them into its own', async () => {
    const stored = await storeImage(store, join(paths.debian_12, 'one'), image);
    const row = { version: VERSION, recipe: 'recipe', size_bytes: BASE.length, ...stored, newest: true };
    assert(await insertVersion(api.db, { id: 'debian-12', ...row }));
    await makeCurrent(api.db, 'debian-12', VERSION);
    await disk();
    const at_home = join(folder, 'at-home');
    await rename(paths.images, at_home);
    const into = join(folder, 'fetched');
    try {
      const made = await backup(into);
      assert.deepEqual([made.code, /base image/.test(made.err)], [0, false], made.err);
    } finally {
      await rename(at_home, paths.images);
    }
    const { images } = await manifestOf(into);
    assert.deepEqual(
      images.map(({ id, version, newest }) => [id, version, newest]),
      [['debian-12', VERSION, true]],
    );
    const target = newTarget();
    const ran = await restore(into, target);
    assert.equal(ran.code, 0, ran.err);
    const restored = pathsIn(target);
    const current = await readHostImage(join(restored.debian_12, 'current'), true);
    assert.equal(current?.version, VERSION);
    const postgres = await startEmbeddedPostgres(restored, { say: () => undefined });
    try {
      const [kept, ...more] = await queryOnce<{ version: string; index_sha256: string }>(
        postgres.database_url,
        'select version, index_sha256 from image_versions where current',
      );
      assert(kept && more.length === 0);
      assert.equal(kept.version, VERSION);
      const there = await FolderStore.open(restored.objects);
      assert(await isImageStored(there, { id: 'debian-12', ...kept }), 'hosts elsewhere fetch it from there');
    } finally {
      await postgres.stop();
    }
  });

  test('a restore into the bucket of the backup forgets no image that the bucket has, although the backup lacks it', async () => {
    const server = await S3Server.start();
    try {
      const bucket = await server.bucket();
      const s3 = bucketSettings(bucket);
      const in_bucket = await openStore({ s3: bucket, folder: '', log: api.context.log });
      const stored = await storeImage(in_bucket, join(paths.debian_12, 'one'), image);
      await api.db.updateTable('image_versions').set(stored).execute();
      const gone = { ...stored, version: 'c'.repeat(64), recipe: 'recipe', size_bytes: 1, newest: false };
      assert(await insertVersion(api.db, { id: 'debian-12', ...gone }));
      const into = join(folder, 'imageless-with-objects');
      const made = await backup(into);
      assert.equal(made.code, 0, made.err);
      const manifest = await manifestOf(into);
      await writeFile(join(into, 'manifest.json'), JSON.stringify({ ...manifest, images: [] }));
      const target = newTarget();
      const ran = await restore(into, target, s3);
      assert.equal(ran.code, 0, ran.err);
      const restored = pathsIn(target);
      const postgres = await startEmbeddedPostgres(restored, { say: () => undefined });
      try {
        const versions = await queryOnce(postgres.database_url, 'select version from image_versions');
        assert.deepEqual(versions, [{ version: VERSION }], 'and the one that it lacks is forgotten');
      } finally {
        await postgres.stop();
      }
    } finally {
      await server.close();
      await api.db.deleteFrom('image_versions').execute();
    }
  });

  test('without its key a backup is restored with the right one alone', async () => {
    const made = await backup(join(folder, 'keyless'), '--without-key', '--json');
    assert.equal(made.code, 0, made.err);
    assert.match(made.err, /does not contain the secret key/);
    assert.ok(!(await readdir(join(folder, 'keyless'))).includes('secret-key'));
    const target = newTarget();
    const asked = await restore(join(folder, 'keyless'), target);
    assert.deepEqual([asked.code, /set BERTH_SECRET_KEY/.test(asked.err)], [2, true]);
    const wrong = await restore(join(folder, 'keyless'), target, { BERTH_SECRET_KEY: 'ab'.repeat(32) });
    assert.deepEqual([wrong.code, /is not the key of this backup/.test(wrong.err)], [2, true]);
  });

  test('an object that is missing leaves a backup of all the rest, and exits 8', async () => {
    const { id } = await disk();
    const { segments } = await api.db
      .selectFrom('generations')
      .select('segments')
      .where('instance_id', '=', id)
      .where('generation', '=', 1)
      .executeTakeFirstOrThrow();
    const key = segments[0]?.key ?? '';
    await rm(join(paths.objects, key));
    const ran = await backup(join(folder, 'partial'));
    assert.equal(ran.code, 8);
    assert.match(ran.err, new RegExp(`${key} is missing or cut short`));
    assert.deepEqual((await manifestOf(join(folder, 'partial'))).objects.damaged, [key]);
  });

  test('objects in a bucket stay there, which is said, and are asked for where there is none', async () => {
    const bucket = join(folder, 'bucket');
    const settings = { BERTH_DATA_DIR: data_dir, DATABASE_URL: api.database.url };
    const ran = await berth({ ...settings, BERTH_S3_BUCKET: 'none' }, 'backup', bucket);
    assert.deepEqual([ran.code, /which stay in the bucket/.test(ran.err)], [0, true], ran.err);
    const { included, count } = (await manifestOf(bucket)).objects;
    assert.deepEqual([included, count > 0], [false, true]);
    const refused = await restore(bucket, newTarget());
    assert.deepEqual([refused.code, /set BERTH_S3_BUCKET/.test(refused.err)], [2, true]);
  });

  test('nothing starts on what a restore did not finish', async () => {
    const target = newTarget();
    await mkdir(target);
    await writeFile(join(target, 'restore-unfinished'), '');
    await assert.rejects(refuseUnfinishedRestore(pathsIn(target)), {
      name: 'StartError',
      message: /did not finish/,
    });
    assert.match((await restore(saved, target)).err, /did not finish: remove it/);
  });
});

async function spoil(path: string): Promise<void> {
  const bytes = await readFile(path);
  bytes.writeUInt8(bytes.readUInt8(bytes.length >> 1) ^ 1, bytes.length >> 1);
  await writeFile(path, bytes);
}

/** Rows of all other tables. */
function without(lines: readonly string[], tables: readonly string[]): string[] {
  let skipping = false;
  return lines.filter((line) => {
    const head = /^\{"table":"(\w+)"/.exec(line);
    if (head) skipping = tables.includes(head[1] ?? '');
    return !skipping && !line.startsWith('{"sequences"') && !line.startsWith('{"complete"');
  });
}
