/** A base image in the object store: what goes in comes out, byte for byte, and whatever is missing or changed is named. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import {
  fetchImage,
  imagePrefix,
  removeStoredImage,
  storeImage,
} from '../../src/disk-format/image-objects.ts';
import { ImageKeeper, type ImageKeeperOptions } from '../../src/host/images/host-images.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { createLog } from '../../src/shared/log.ts';
import { writeHostImage } from '../support/host-image.ts';
import { until } from '../support/waiting.ts';

const MIB = 2 ** 20;
const hex = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

async function scene(t: TestContext) {
  const root = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const store = await FolderStore.open(join(root, 'objects'));
  const images_dir = join(root, 'images');
  const folder = join(images_dir, 'own', 'made');
  const rootfs = Buffer.alloc(13 * MIB + 5);
  randomBytes(5 * MIB).copy(rootfs, 3 * MIB);
  const manifest = await writeHostImage(folder, 'own', rootfs);
  const version = manifest.files['rootfs.img'];
  const objects = join(root, 'objects', imagePrefix('own', version));
  return { root, store, images_dir, folder, rootfs, manifest, version, objects };
}

test('an image reads back unchanged and sparse, and a second upload writes nothing', async (t) => {
  const { root, store, folder, rootfs, manifest, version, objects } = await scene(t);
  const first = await storeImage(store, folder, manifest);
  const index = statSync(join(objects, 'index.json')).ino;
  assert.deepEqual(await storeImage(store, folder, manifest), first);
  assert.equal(statSync(join(objects, 'index.json')).ino, index);
  const back = join(root, 'back');
  const seen: number[] = [];
  await fetchImage(store, { id: 'own', version, ...first }, back, { progress: (done) => seen.push(done) });
  assert.ok(readFileSync(join(back, 'rootfs.img')).equals(rootfs));
  assert.deepEqual(JSON.parse(readFileSync(join(back, 'manifest.json'), 'utf8')), manifest);
  assert.ok(statSync(join(back, 'rootfs.img')).blocks * 512 < 13 * MIB);
  assert.equal(seen.at(-1), rootfs.length + 12);
  await removeStoredImage(store, 'own', version);
  await removeStoredImage(store, 'own', version);
  await assert.rejects(fetchImage(store, { id: 'own', version, ...first }, back), /index\.json is missing/);
});

test('a file that differs from its manifest is not stored', async (t) => {
  const { store, folder, manifest, objects } = await scene(t);
  writeFileSync(join(folder, 'vmlinuz'), 'another');
  await assert.rejects(storeImage(store, folder, manifest), {
    name: 'ImageDamagedError',
    message: /vmlinuz/,
  });
  assert.ok(!existsSync(join(objects, 'index.json')));
});

test('a piece that is missing or changed is named, and nothing appears in the folder', async (t) => {
  const { root, store, folder, rootfs, manifest, version, objects } = await scene(t);
  const stored = { id: 'own', version, ...(await storeImage(store, folder, manifest)) };
  const piece = hex(rootfs.subarray(4 * MIB, 8 * MIB));
  const [path, back] = [join(objects, piece), join(root, 'back')];
  const good = readFileSync(path);
  rmSync(path);
  await assert.rejects(
    fetchImage(store, stored, back),
    new RegExp(`${piece} is missing from the object store`),
  );
  for (const bad of [
    good.subarray(0, 100),
    Buffer.concat([good, good]),
    readFileSync(join(objects, manifest.files.vmlinuz)),
  ]) {
    writeFileSync(path, bad);
    await assert.rejects(fetchImage(store, stored, back), new RegExp(`${piece} is damaged`));
  }
  writeFileSync(path, good);
  const index = readFileSync(join(objects, 'index.json'), 'utf8');
  rmSync(join(objects, 'index.json'));
  writeFileSync(join(objects, 'index.json'), index.replace(manifest.files.vmlinuz, 'a'.repeat(64)));
  await assert.rejects(fetchImage(store, stored, back), /index\.json is damaged/);
  assert.deepEqual(readdirSync(root).sort(), ['images', 'objects']);
});

/** The control plane's answers, by a table. */
function controlPlane() {
  const rows = new Map<string, { version: string; index_sha256: string }>();
  const client: ImageKeeperOptions['client'] = {
    offerImages: async ({ images }) => ({
      verdicts: images.map(({ version }) => (rows.has(version) ? 'stored' : 'wanted')),
    }),
    registerImage: async ({ version, index_sha256 }) => {
      rows.set(version, { version, index_sha256 });
      return { outcome: 'accepted' };
    },
    findImage: async ({ version }) => rows.get(version ?? '') ?? null,
  };
  return { rows, client };
}

test('a host uploads its image before a disk on it is durable, and downloads a lost one', async (t) => {
  const { store, images_dir, folder, version, rootfs } = await scene(t);
  const { rows, client } = controlPlane();
  const log = createLog('test', 'fatal');
  const keeper = () => new ImageKeeper({ images_dir, client, store, log });
  const signal = AbortSignal.timeout(60_000);
  const one = keeper();
  await Promise.all([one.stored('own', version, signal), one.stored('own', version, signal)]);
  assert.equal(rows.size, 1);
  // Only a file of it: all of it counts as lost.
  rmSync(join(folder, 'vmlinuz'));
  const [image, same] = await Promise.all([one.forDisk('own', version), one.forDisk('own', version)]);
  assert.equal(image.folder, same.folder);
  assert.ok(readFileSync(image.rootfs_path).equals(rootfs));
  // Another host.
  rmSync(join(images_dir, 'own'), { recursive: true });
  assert.equal((await keeper().forDisk('own', version)).version, version);
  rmSync(join(images_dir, 'own'), { recursive: true });
  await removeStoredImage(store, 'own', version);
  await assert.rejects(keeper().forDisk('own', version), {
    name: 'ImageError',
    message: new RegExp(
      `the image "own" of version ${version.slice(0, 12)} is not on this host, and images/own/${version}/index.json is missing`,
    ),
  });
  await assert.rejects(
    keeper().forDisk('own', 'b'.repeat(64)),
    /no image "own" of version bbbbbbbbbbbb, on which the disk is based,/,
  );
});

/** Two that wait for one image: the one that began to fetch it, and one that came to it. */
async function twoWait(t: TestContext) {
  const { store, images_dir, version, rootfs } = await scene(t);
  const { client } = controlPlane();
  const keeper = new ImageKeeper({ images_dir, client, store, log: createLog('test', 'fatal') });
  await keeper.stored('own', version, AbortSignal.timeout(60_000));
  rmSync(join(images_dir, 'own'), { recursive: true });
  const released = Promise.withResolvers<void>();
  const get = store.get.bind(store);
  const got = t.mock.method(store, 'get', async (...wanted: Parameters<typeof get>) => {
    await released.promise;
    return get(...wanted);
  });
  const asked = t.mock.method(client, 'findImage');
  const wait = (leaving: AbortController) => {
    const image = keeper.forDisk('own', version, leaving.signal);
    image.catch(() => undefined);
    return image;
  };
  const [leaving_first, leaving_second] = [new AbortController(), new AbortController()];
  const first = wait(leaving_first);
  await until('the first fetches it', () => got.mock.callCount() === 1);
  const second = wait(leaving_second);
  await until('the second has asked where it is', () => asked.mock.callCount() === 2);
  // Until it waits for the first's: its answer is there already.
  await setImmediate();
  return { rootfs, first, second, leaving_first, leaving_second, release: released.resolve };
}

test('when one of two callers stops waiting for an image, the other still gets it', async (t) => {
  const { first, second, leaving_first, release, rootfs } = await twoWait(t);
  leaving_first.abort(new Error('something else is wanted now'));
  release();
  await assert.rejects(first, /something else is wanted now/);
  assert.ok(readFileSync((await second).rootfs_path).equals(rootfs));
});

test('a caller that stops waiting for an image returns at once', async (t) => {
  const { first, second, leaving_second, release, rootfs } = await twoWait(t);
  leaving_second.abort(new Error('something else is wanted now'));
  await assert.rejects(second, /something else is wanted now/);
  release();
  assert.ok(readFileSync((await first).rootfs_path).equals(rootfs));
});

test('an image that another caller has fetched is not fetched again while VMs use it', async (t) => {
  const { store, images_dir, version } = await scene(t);
  const { client } = controlPlane();
  const keeper = new ImageKeeper({ images_dir, client, store, log: createLog('test', 'fatal') });
  await keeper.stored('own', version, AbortSignal.timeout(60_000));
  rmSync(join(images_dir, 'own'), { recursive: true });
  const [asked, answered] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const find = client.findImage;
  t.mock.method(
    client,
    'findImage',
    async (...wanted: Parameters<typeof find>) => {
      const found = await find(...wanted);
      asked.resolve();
      await answered.promise;
      return found;
    },
    { times: 1 },
  );
  const late = keeper.forDisk('own', version);
  await asked.promise;
  const { rootfs_path } = await keeper.forDisk('own', version);
  const { ino } = statSync(rootfs_path);
  answered.resolve();
  assert.equal(statSync((await late).rootfs_path).ino, ino);
});

test('an image that cannot be stored does not block others', async (t) => {
  const { store, images_dir, version } = await scene(t);
  const bad = await writeHostImage(join(images_dir, 'bad', 'made'), 'bad', randomBytes(MIB));
  writeFileSync(join(images_dir, 'bad', 'made', 'vmlinuz'), 'another');
  const { rows, client } = controlPlane();
  const keeper = new ImageKeeper({ images_dir, client, store, log: createLog('test', 'fatal') });
  const ending = new AbortController();
  const running = keeper.run(ending.signal);
  await until('the other is stored', () => rows.has(version));
  ending.abort();
  await running;
  assert(!rows.has(bad.files['rootfs.img']));
});
