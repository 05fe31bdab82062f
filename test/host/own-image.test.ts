/**
 * What is given as an image may be anything: archives that were made to get out of their folder, to fill the disk, or to
 * lie about themselves are refused by name; good ones come out as they went in. No guest is booted here.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { findRoot, rootOfDisk } from '../../src/host/images/disk-file.ts';
import { problemsIn } from '../../src/host/images/image-machines.ts';
import { ImageTree } from '../../src/host/images/image-tree.ts';
import { readTar, type TarEntry } from '../../src/host/images/read-tar.ts';
import { headOf, unpacked } from '../../src/host/images/unpacked.ts';
import { type MadeEntry, paxEntry, tarEntry, tarOf } from '../support/tar-maker.ts';
import { until } from '../support/waiting.ts';

const AS_ROOT =
  process.getuid?.() === 0 ? {} : { skip: 'files get the owners that the archive says: takes root' };
const MIB = 2 ** 20;

async function workFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Archives over each other, as a tree on the disk. */
async function unpack(
  t: TestContext,
  layers: readonly Buffer[],
  { whiteouts = false, max_bytes = MIB } = {},
): Promise<string> {
  const folder = await workFolder(t);
  mkdirSync(join(folder, 'contents'));
  const tree = new ImageTree({ folder: join(folder, 'contents'), max_bytes });
  for (const layer of layers) {
    // In pieces of an odd size: nothing may depend on how the bytes come.
    const pieces = async function* () {
      for (let at = 0; at < layer.length; at += 700) yield layer.subarray(at, at + 700);
    };
    await tree.addLayer(readTar(pieces()), { whiteouts });
  }
  await tree.writeTo(join(folder, 'root'));
  return join(folder, 'root');
}

test('an archive is unpacked with its modes, owners, links and long names', AS_ROOT, async (t) => {
  const long = `${'d'.repeat(90)}/${'e'.repeat(90)}/${'f'.repeat(90)}`;
  const root = await unpack(t, [
    tarOf(
      { path: './', type: '5' },
      { path: './bin', type: '2', target: '/usr/bin' },
      { path: 'usr/bin/', type: '5' },
      { path: 'usr/bin/su', content: 'su', mode: 0o4755, uid: 12, gid: 34 },
      { path: 'usr/bin/also-su', type: '1', target: './usr/bin/su' },
      // Through the link, which means this tree's own /usr/bin.
      { path: 'bin/sh', content: 'sh', mode: 0o755 },
      paxEntry({ path: long }),
      { path: 'short', content: 'long' },
      tarEntry({ path: '././@LongLink', type: 'L', content: `${long}.gnu\0` }),
      { path: 'short', content: 'gnu' },
      { path: 'dev/null', type: '3' },
      { path: 'run/pipe', type: '6' },
    ),
  ]);
  const su = statSync(join(root, 'usr/bin/su'));
  assert.deepEqual([su.mode & 0o7777, su.uid, su.gid, su.nlink], [0o4755, 12, 34, 2]);
  assert.equal(readFileSync(join(root, 'usr/bin/sh'), 'utf8'), 'sh');
  assert.equal(readlinkSync(join(root, 'bin')), '/usr/bin');
  assert.equal(readFileSync(join(root, long), 'utf8'), 'long');
  assert.equal(readFileSync(join(root, `${long}.gnu`), 'utf8'), 'gnu');
  assert.ok(!existsSync(join(root, 'dev')) && !existsSync(join(root, 'run/pipe')));
});

test(
  'times in GNU’s header are not part of a path, and times before 1970 are accepted',
  AS_ROOT,
  async (t) => {
    const header = tarEntry({ path: 'a', content: 'x' });
    header.write('ustar  \0', 257, 'latin1');
    header.write('14524770562\0', 345, 'latin1');
    header.fill(0xff, 136, 148);
    header.fill(' ', 148, 156);
    const sum = header.subarray(0, 512).reduce((all, byte) => all + byte, 0);
    header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
    const root = await unpack(t, [tarOf(header)]);
    assert.equal(statSync(join(root, 'a')).mtimeMs, 0);
  },
);

test(
  'later layers replace earlier ones, and whiteouts remove only entries of the layers below',
  AS_ROOT,
  async (t) => {
    const below = tarOf(
      { path: 'etc/', type: '5' },
      { path: 'etc/kept', content: '1' },
      { path: 'etc/gone', content: '1' },
      { path: 'opt/old/', type: '5' },
      { path: 'opt/old/a', content: '1' },
      { path: 'var/lib', type: '5' },
      { path: 'var/lib/below', content: '1' },
      { path: 'lib', type: '2', target: 'var/lib' },
    );
    const above = tarOf(
      { path: 'etc/.wh.gone' },
      { path: 'opt/.wh.old' },
      { path: 'var/lib/new', content: '2' },
      { path: 'var/lib/.wh..wh..opq' },
      { path: 'etc/kept', content: '2' },
      { path: '.wh..wh.plnk', type: '5' },
    );
    const root = await unpack(t, [below, above], { whiteouts: true });
    assert.deepEqual(readdirSync(join(root, 'etc')), ['kept']);
    assert.equal(readFileSync(join(root, 'etc/kept'), 'utf8'), '2');
    assert.deepEqual(readdirSync(join(root, 'opt')), []);
    assert.deepEqual(readdirSync(join(root, 'var/lib')), ['new']);
    assert.ok(lstatSync(join(root, 'lib')).isSymbolicLink());
    // A plain tarball has no whiteouts: there it is a name.
    const plain = await unpack(t, [tarOf({ path: 'etc/.wh.gone' })]);
    assert.deepEqual(readdirSync(join(plain, 'etc')), ['.wh.gone']);
  },
);

test('nothing is ever written through a link of the archive', AS_ROOT, async (t) => {
  const outside = await workFolder(t);
  const root = await unpack(t, [
    tarOf(
      { path: 'out', type: '2', target: outside },
      { path: 'out/planted', content: 'x' },
      { path: 'up', type: '2', target: '../../../../../../..' },
      { path: `up${outside}/planted2`, content: 'x' },
    ),
  ]);
  assert.deepEqual(readdirSync(outside), []);
  assert.equal(readFileSync(join(root, outside, 'planted'), 'utf8'), 'x');
  assert.equal(readFileSync(join(root, outside, 'planted2'), 'utf8'), 'x');
});

const REFUSED: Readonly<Record<string, readonly [Buffer | readonly (MadeEntry | Buffer)[], RegExp]>> = {
  'a path outside of the root': [[{ path: '../../etc/passwd', content: 'x' }], /leads out of the image/],
  'a path outside of the root by a pax header': [
    [paxEntry({ path: 'a/../../b' }), { path: 'a' }],
    /leads out of the image/,
  ],
  'a hard link to the host': [
    [{ path: 'shadow', type: '1', target: '/etc/shadow' }],
    /no file of the archive/,
  ],
  'a hard link outside of the root': [[{ path: 'a', type: '1', target: '../x' }], /leads out of the image/],
  'a hard link to a folder': [
    [
      { path: 'd/', type: '5' },
      { path: 'a', type: '1', target: 'd' },
    ],
    /no file of the archive/,
  ],
  'a device': [[{ path: 'srv/disk', type: '4' }], /is a device/],
  'a file below a file': [
    [
      { path: 'a', content: 'x' },
      { path: 'a/b', content: 'x' },
    ],
    /not a folder/,
  ],
  'links in a circle': [
    [
      { path: 'a', type: '2', target: 'b' },
      { path: 'b', type: '2', target: 'a' },
      { path: 'a/c', content: 'x' },
    ],
    /not a folder/,
  ],
  'more bytes than the limit': [[{ path: 'big', content: Buffer.alloc(MIB + 1) }], /has more than/],
  'a false size': [[{ path: 'big', size: 2 ** 31 }], /has more than/],
  'an end in the middle': [
    tarEntry({ path: 'a', content: 'x'.repeat(600) }).subarray(0, 1_000),
    /ends in the middle/,
  ],
  'a damaged header': [Buffer.alloc(1_024, 'x'), /not a tar archive/],
  'a sparse file': [[paxEntry({ 'GNU.sparse.major': '1' }), { path: 'a' }], /sparse/],
  'a sparse file of GNU’s own form': [[{ path: 'a', type: 'S', content: 'x' }], /sparse/],
  'an entry of a type that nobody knows': [[{ path: 'a', type: 'Z' }], /unknown type/],
  'a header of a gigabyte': [[{ path: 'x', type: 'x', size: 2 ** 30 }], /over 4 MiB/],
  'a long name of a gigabyte': [[{ path: 'x', type: 'L', size: 2 ** 30 }], /over 4 MiB/],
  'a size that is no number': [[paxEntry({ size: 'all' }), { path: 'a', content: 'x' }], /damaged/],
  'a size without end': [[paxEntry({ size: '9'.repeat(400) }), { path: 'a', content: 'x' }], /has more than/],
  'an owner that is no number': [[paxEntry({ uid: 'root' }), { path: 'a' }], /invalid number/],
  'an owner that chown would leave as it is': [
    [paxEntry({ gid: String(2 ** 32 - 1) }), { path: 'a' }],
    /invalid owner/,
  ],
  'a link with bytes that the archive does not have': [
    [paxEntry({ size: String(2 ** 40) }), { path: 'a', type: '2', target: 'b' }],
    /ends in the middle/,
  ],
  'an invalid name': [
    [{ path: `a\u0001/${'x'.repeat(10)}` }, paxEntry({ path: 'y'.repeat(300) }), { path: 'a' }],
    /is invalid/,
  ],
  'a link target that is not UTF-8': [
    [{ path: 'a', type: '2', target: 'b\ufffd' }],
    /link to an invalid target/,
  ],
  'endless folders': [[paxEntry({ path: 'a/'.repeat(200) }), { path: 'a', type: '5' }], /is invalid/],
};

for (const [what, [entries, why]] of Object.entries(REFUSED)) {
  test(`refused: ${what}`, AS_ROOT, async (t) => {
    const archive = Buffer.isBuffer(entries) ? entries : tarOf(...(entries as (MadeEntry | Buffer)[]));
    await assert.rejects(unpack(t, [archive]), { name: 'UnusableImageError', message: why });
  });
}

test('content that nobody reads is skipped, and an error of reading the bytes is not the archive’s', async () => {
  const archive = tarOf({ path: 'a', content: Buffer.alloc(3 * MIB, 'a') }, { path: 'b', content: 'b' });
  const paths: string[] = [];
  const pieces = async function* () {
    for (let at = 0; at < archive.length; at += 65_536) yield archive.subarray(at, at + 65_536);
  };
  for await (const { path } of readTar(pieces())) paths.push(path);
  assert.deepEqual(paths, ['a', 'b']);
  const broken = new Error('the disk is broken');
  const failing = async function* () {
    yield archive.subarray(0, MIB);
    throw broken;
  };
  await assert.rejects(async () => {
    for await (const entry of readTar(failing())) for await (const _ of entry.body());
  }, broken);
});

test('an archive that is read no further lets go of its bytes', async () => {
  let let_go = false;
  const pieces = async function* () {
    try {
      for (;;) yield tarEntry({ path: 'a', content: Buffer.alloc(65_536) });
    } finally {
      let_go = true;
    }
  };
  for await (const { path } of readTar(pieces())) if (path === 'a') break;
  await until('the bytes are let go', () => let_go);
});

test('folders that exist only in paths count as entries', async (t) => {
  const tree = new ImageTree({ folder: await workFolder(t), max_bytes: MIB });
  const below = 'd/'.repeat(120);
  const plain = { kind: 'folder', mode: 0o755, uid: 0, gid: 0, mtime: 0 } as const;
  const entries = async function* () {
    for (let n = 0; n < 5_000; n++) yield { ...plain, path: `${n}/${below}` } as TarEntry;
  };
  await assert.rejects(tree.addLayer(entries(), { whiteouts: false }), /more than 500000 entries/);
});

test('gzip, zstd and xz are unpacked; a bomb stops at the bound; damage is named', AS_ROOT, async (t) => {
  const folder = await workFolder(t);
  const archive = tarOf({ path: 'a', content: 'x'.repeat(10_000) });
  const xz = execFileSync('xz', ['-c'], { input: archive });
  const read = async (bytes: Buffer, max_bytes = MIB) => {
    writeFileSync(join(folder, 'given'), bytes);
    const contents = await mkdtemp(join(folder, 'c-'));
    const tree = new ImageTree({ folder: contents, max_bytes });
    await using given = await open(join(folder, 'given'), 'r');
    await tree.addLayer(readTar(unpacked(given)), { whiteouts: false });
    return tree.has('/a');
  };
  for (const bytes of [archive, gzipSync(archive), zstdCompressSync(archive), xz])
    assert.equal(await read(bytes), 'file');
  const bomb = gzipSync(tarOf({ path: 'a', content: Buffer.alloc(64 * MIB) }));
  assert.ok(bomb.length < MIB);
  await assert.rejects(read(bomb), /has more than/);
  for (const bytes of [gzipSync(archive), zstdCompressSync(archive), xz]) {
    bytes.fill(0xff, bytes.length / 2);
    await assert.rejects(read(bytes), { name: 'UnusableImageError' });
  }
});

test('a root file system is found on the whole disk or in a partition; other file systems and references to other files are refused', async (t) => {
  const folder = await workFolder(t);
  const disk = join(folder, 'disk');
  execFileSync('mke2fs', ['-q', '-F', '-t', 'ext4', '-b', '4096', disk, '16M']);
  const ext4 = readFileSync(disk);
  const rootIn = async (bytes: Buffer) => {
    writeFileSync(disk, bytes);
    await using file = await open(disk, 'r');
    return await findRoot(file, bytes.length);
  };
  assert.deepEqual(await rootIn(ext4), { offset: 0, length: 16 * MIB });
  const mbr = Buffer.concat([Buffer.alloc(MIB), ext4]);
  mbr.writeUInt16LE(0xaa55, 510);
  mbr[446 + 4] = 0x83;
  mbr.writeUInt32LE(2_048, 446 + 8);
  mbr.writeUInt32LE(32_768, 446 + 12);
  assert.deepEqual(await rootIn(mbr), { offset: MIB, length: 16 * MIB });
  execFileSync('mke2fs', ['-q', '-F', '-t', 'ext4', '-b', '1024', disk, '8M']);
  const boot = readFileSync(disk).subarray(0, 8 * MIB);
  await assert.rejects(rootIn(boot), /blocks of 1024 bytes/);
  // A /boot before it, of another form.
  const with_boot = Buffer.concat([mbr.subarray(0, MIB), boot, ext4]);
  mbr.copy(with_boot, 446 + 16, 446, 446 + 16);
  with_boot.writeUInt32LE(16_384, 446 + 12);
  with_boot.writeUInt32LE(2_048 + 16_384, 446 + 16 + 8);
  assert.deepEqual(await rootIn(with_boot), { offset: 9 * MIB, length: 16 * MIB });
  mbr.writeUInt32LE(2 ** 31, 446 + 12);
  await assert.rejects(rootIn(mbr), /no ext4 root/);
  await assert.rejects(rootIn(Buffer.alloc(MIB)), /no ext4 root/);

  const options = { work_dir: folder, max_bytes: 64 * MIB, run_as: null, jail: null };
  const qcow2 = join(folder, 'q');
  const make = async (...words: string[]) => {
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', ...words]);
    return rootOfDisk(qcow2, await headOf(qcow2), options);
  };
  writeFileSync(disk, ext4);
  await assert.rejects(make('-b', '/etc/shadow', '-F', 'raw', '-u', qcow2, '16M'), /backing file/);
  await assert.rejects(make('-o', `data_file=${join(folder, 'data')}`, qcow2, '16M'), /in another file/);
  await assert.rejects(make(qcow2, '1G'), /larger than/);
  execFileSync('qemu-img', ['convert', '-f', 'raw', '-O', 'qcow2', disk, qcow2]);
  const rootfs = await rootOfDisk(qcow2, await headOf(qcow2), options);
  assert.equal(
    createHash('sha256').update(readFileSync(rootfs)).digest('hex'),
    createHash('sha256').update(ext4).digest('hex'),
  );
});

test('the machine’s list of missing files is found among its firmware’s escape sequences', () => {
  const said =
    'Booting from ROM..\u001bc\u001b[?7l\u001b[2Jberth-install: /usr/sbin/sshd is missing\r\nberth-install: no flock\r\n';
  assert.deepEqual(problemsIn(said), ['/usr/sbin/sshd is missing', 'no flock']);
});
