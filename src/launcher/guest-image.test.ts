import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { type TestContext, test } from 'node:test';
import { currentGuestImage, ensureGuestImage, SecondsLine, someGuestImage } from './guest-image.ts';

const AS_ROOT = process.getuid?.() === 0 ? {} : { skip: 'needs root' };
const FIRST = 'a'.repeat(64);
const SECOND = 'b'.repeat(64);

/** A recipe of that version which counts its builds in the file `builds`. */
async function recipe(folder: string, version: string, builds = 'ok'): Promise<string> {
  const path = join(folder, 'build.sh');
  await writeFile(
    path,
    `set -eu
if [ "$1" = --version ]; then echo ${version}; exit; fi
echo x >> ${folder}/builds
[ ${builds} = ok ] || exit 1
mkdir -p "$1"
for file in vmlinuz initrd.img rootfs.img; do echo x > "$1/$file"; done
echo '{"version":"${version}","size_bytes":2}' > "$1/manifest.json"
`,
  );
  return path;
}

async function workFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(folder, { recursive: true }));
  return folder;
}

async function buildsIn(folder: string): Promise<number> {
  return (await readFile(join(folder, 'builds'), 'utf8').catch(() => '')).length / 2;
}

const say = () => undefined;

test('an image is built once for each version, and the older one stays', AS_ROOT, async (t) => {
  const folder = await workFolder(t);
  const images_dir = join(folder, 'images');
  for (const build_script of [await recipe(folder, FIRST), await recipe(folder, FIRST)]) {
    const image = await ensureGuestImage({ build_script, images_dir, say });
    assert.deepEqual(image, { dir: join(images_dir, 'aaaaaaaaaaaa'), version: FIRST });
  }
  assert.equal(await buildsIn(folder), 1);
  assert.equal(await currentGuestImage(images_dir), join(images_dir, 'aaaaaaaaaaaa'));
  await ensureGuestImage({ build_script: await recipe(folder, SECOND), images_dir, say });
  assert.equal(await buildsIn(folder), 2);
  assert.equal(await currentGuestImage(images_dir), join(images_dir, 'bbbbbbbbbbbb'));
  await stat(join(images_dir, 'aaaaaaaaaaaa', 'manifest.json'));
});

test('an image of the same version in the seed folder is used instead of built', AS_ROOT, async (t) => {
  const folder = await workFolder(t);
  const seed_dir = join(folder, 'seed');
  const build_script = await recipe(folder, FIRST);
  await ensureGuestImage({ build_script, images_dir: seed_dir, say });
  const image = await ensureGuestImage({ build_script, images_dir: join(folder, 'images'), seed_dir, say });
  assert.equal(await buildsIn(folder), 1);
  assert.equal(JSON.parse(await readFile(join(image.dir, 'manifest.json'), 'utf8')).version, FIRST);
});

test('an image with a missing or truncated file is built again', AS_ROOT, async (t) => {
  const folder = await workFolder(t);
  const first = { build_script: await recipe(folder, FIRST), images_dir: join(folder, 'images'), say };
  const { dir } = await ensureGuestImage(first);
  await rm(join(dir, 'vmlinuz'));
  await someGuestImage(first);
  assert.equal(await buildsIn(folder), 2);
  await truncate(join(dir, 'rootfs.img'), 1);
  await ensureGuestImage(first);
  assert.equal(await buildsIn(folder), 3);
  assert.equal((await stat(join(dir, 'rootfs.img'))).size, 2);
});

test('a build that fails is an error, and the next one tries again', AS_ROOT, async (t) => {
  const folder = await workFolder(t);
  const images_dir = join(folder, 'images');
  const failing = await recipe(folder, FIRST, 'failing');
  await assert.rejects(ensureGuestImage({ build_script: failing, images_dir, say }), {
    name: 'StartError',
    exit_code: 1,
    message: /could not be built \(exit code 1\)/,
  });
  await ensureGuestImage({ build_script: await recipe(folder, FIRST), images_dir, say });
});

test(
  'an older image serves while the newer one is built, and goes on when that fails',
  AS_ROOT,
  async (t) => {
    const folder = await workFolder(t);
    const images_dir = join(folder, 'images');
    const first = { build_script: await recipe(folder, FIRST), images_dir, say };
    assert.deepEqual(await someGuestImage(first), {}, 'without any, it is built at once');
    assert.deepEqual(await someGuestImage(first), {}, 'the existing image is used');
    const never = new AbortController().signal;
    const failing = await someGuestImage({
      build_script: await recipe(folder, SECOND, 'failing'),
      images_dir,
      say,
    });
    await assert.rejects(async () => failing.newer?.(never), /could not be built/);
    assert.equal(await currentGuestImage(images_dir), join(images_dir, 'aaaaaaaaaaaa'));
    const second = await someGuestImage({ build_script: await recipe(folder, SECOND), images_dir, say });
    assert.equal(await buildsIn(folder), 2, 'nothing has waited for it');
    await second.newer?.(never);
    assert.equal(await currentGuestImage(images_dir), join(images_dir, 'bbbbbbbbbbbb'));
  },
);

const ERASE = '\r\u001b[2K';

test('output replaces the elapsed seconds, and the end removes them', (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] });
  const out = new PassThrough({ encoding: 'utf8' });
  const line = new SecondsLine(out);
  t.mock.timers.tick(1_000);
  line.say('step 2');
  line.end();
  t.mock.timers.tick(5_000);
  assert.equal(String(out.read()).replace(/\d+ s/, 'N s'), `${ERASE}… N s${ERASE}step 2\n${ERASE}`);
});
