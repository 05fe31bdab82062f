/** From an archive to the file system that becomes an image's root. No guest is booted here. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readdirSync, statSync, writeFileSync } from 'node:fs';
import { chmod, mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { rootOf } from '../../src/host/images/make-image.ts';
import { tarOf } from '../support/tar-maker.ts';

const AS_ROOT =
  process.getuid?.() === 0 ? {} : { skip: 'files get the owners that the archive says: takes root' };
const GIB = 2 ** 30;

async function rootFrom(
  t: TestContext,
  archive: Buffer,
  say: (step: string, work_dir: string) => void = () => undefined,
) {
  const folder = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const work_dir = join(folder, 'work');
  await mkdir(work_dir);
  await chmod(work_dir, 0o711);
  const given = join(folder, 'given');
  writeFileSync(given, archive);
  const options = {
    given,
    max_bytes: GIB,
    run_as: null,
    jail: null,
    say: (step: string) => say(step, work_dir),
  };
  return rootOf(options, work_dir);
}

/** Files below `folder` to which everybody may pass. */
function reachable(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isFile()) return [path];
    return entry.isDirectory() && (statSync(path).mode & 0o001) !== 0 ? reachable(path) : [];
  });
}

test('while an image is made, other users of the machine cannot reach its files', AS_ROOT, async (t) => {
  const archive = tarOf({ path: './', type: '5' }, { path: 'su', content: 'su', mode: 0o4755 });
  const steps: string[] = [];
  const rootfs = await rootFrom(t, archive, (step, work_dir) => {
    steps.push(step);
    assert.deepEqual(reachable(work_dir), []);
  });
  assert.deepEqual(steps, ['unpacking', 'writing the file system']);
  const listed = execFileSync('debugfs', ['-R', 'stat /su', rootfs], { encoding: 'utf8' });
  assert.match(listed, /Mode: +04755/);
});

test('a decompressor’s checksum error at the end is reported', AS_ROOT, async (t) => {
  const content = randomBytes(600_000);
  // The checksum comes well after the archive's end.
  const archive = Buffer.concat([tarOf({ path: 'a', content }), Buffer.alloc(2 ** 22)]);
  const stored = gzipSync(archive, { level: 0 });
  await rootFrom(t, stored);
  // One byte of the content: the archive itself has no checksum over it.
  const at = stored.indexOf(content.subarray(300_000, 300_016));
  stored.writeUInt8(stored.readUInt8(at) ^ 1, at);
  await assert.rejects(rootFrom(t, stored), {
    name: 'UnusableImageError',
    message: 'its gzip compression is damaged',
  });
});

test('there is an inode for each file, and the usual number of free ones', AS_ROOT, async (t) => {
  // At this size (512 MiB) mke2fs alone makes 32,768 of them for all.
  const large = { path: 'large', content: Buffer.alloc(60_000_000) };
  const files = Array.from({ length: 2_000 }, (_, i) => ({ path: `${i}`, content: 'x' }));
  const rootfs = await rootFrom(t, tarOf(large, ...files));
  const said = execFileSync('dumpe2fs', ['-h', rootfs], { encoding: 'utf8' });
  const free = Number(/Free inodes: +(\d+)/.exec(said)?.[1]);
  assert.ok(free > 32_000, said);
});
