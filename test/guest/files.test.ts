/** Files of a real guest: through the API and the command line of a whole installation. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { after, before, describe, test } from 'node:test';
import { Berth, BerthError, type FileEntry, type Files } from '../../client/src/berth.ts';
import { readFirstLogin } from '../../src/launcher/data-folder.ts';
import { Cli } from '../support/cli.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { thorough } from '../support/thorough.ts';

const THOROUGH = thorough(import.meta.filename);

const MIB = 2 ** 20;
const GIB = 2 ** 30;

describe('files of a guest', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let files: Files;
  const cli = new Cli();
  const folder = mkdtempSync(join(tmpdir(), 'berth-cp-'));

  before(async () => {
    berth = await borrowInstallation();
    guest = await GuestInstance.running(berth, 'files', { disk_gib: 12 });
    files = new Berth({ url: berth.origin, token: berth.client.token }).files(guest.id);
    cli.env['BERTH_URL'] = berth.origin;
    cli.env['BERTH_DATA_DIR'] = berth.data_dir;
    const login = await readFirstLogin(berth.paths);
    const { code, err } = await cli.run(['login', '--password-stdin'], login?.password);
    assert.equal(code, 0, err);
  });
  after(async () => {
    rmSync(folder, { recursive: true, force: true });
    await returnInstallation();
  });

  const code = (wanted: string) => (error: unknown) => error instanceof BerthError && error.code === wanted;
  async function entriesOf(path: string): Promise<FileEntry[]> {
    const found: FileEntry[] = [];
    for await (const entry of files.list(path)) found.push(entry);
    return found;
  }
  const text = async (path: string) => (await files.read(path)).text();

  test('a file is written and read, whole and in part, with its mode and owner', async () => {
    const content = randomBytes(4 * MIB);
    await files.write('/srv/new/file', content, { mode: '0640', user: 'nobody' });
    const answer = await files.read('/srv/new/file');
    assert.ok(Buffer.from(await answer.arrayBuffer()).equals(content));
    assert.equal(answer.headers.get('berth-file-mode'), '0640');
    assert.equal(answer.headers.get('berth-file-user'), 'nobody');
    const part = await files.read('/srv/new/file', { start: MIB, end: MIB + 10 });
    assert.equal(part.status, 206);
    assert.equal(part.headers.get('content-range'), `bytes ${MIB}-${MIB + 9}/${4 * MIB}`);
    assert.ok(Buffer.from(await part.arrayBuffer()).equals(content.subarray(MIB, MIB + 10)));
    await assert.rejects(files.read('/srv/new/file', { start: 5 * MIB }), code('RANGE_NOT_SATISFIABLE'));
    await assert.rejects(files.read('/srv/new'), code('CONFLICT'));
    await assert.rejects(files.read('/srv/none'), code('NOT_FOUND'));
    await assert.rejects(files.read('srv/new/file'), code('INVALID_REQUEST'));
    // Replaced by another: its mode and its owner stay.
    await files.write('/srv/new/file', 'short');
    assert.match(await guest.sh('stat -c %U:%a /srv/new/file'), /^nobody:640$/);
  });

  test('a write is conditional', async () => {
    await files.write('/srv/once', 'one', { create: true });
    await assert.rejects(files.write('/srv/once', 'two', { create: true }), code('PRECONDITION_FAILED'));
    const etag = (await files.read('/srv/once')).headers.get('etag') ?? '';
    await files.write('/srv/once', 'two', { if_match: etag });
    await assert.rejects(files.write('/srv/once', 'three', { if_match: etag }), code('PRECONDITION_FAILED'));
    assert.equal(await text('/srv/once'), 'two');
  });

  test('names have any bytes; entries are moved and deleted by the paths of the list', async () => {
    const odd = Buffer.concat([Buffer.from('/srv/odd/'), Buffer.from([0x0a, 0xff, 0x25, 0x2b, 0x20])]);
    await files.write(odd, 'odd');
    await files.write('/srv/odd/é %41', 'text');
    const entries = await entriesOf('/srv/odd');
    assert.deepEqual(
      entries.map(({ path }) => Buffer.from(path as Uint8Array)),
      [odd, Buffer.from('/srv/odd/é %41')],
    );
    for (const { path, size } of entries)
      assert.equal((await (await files.read(path)).arrayBuffer()).byteLength, size);
    await files.move(odd, '/srv/odd/plain');
    assert.equal(await text('/srv/odd/plain'), 'odd');
    await assert.rejects(files.remove('/srv/odd'), code('CONFLICT'));
    await files.remove('/srv/odd', { recursive: true });
    await assert.rejects(files.remove('/srv/odd'), code('NOT_FOUND'));
    assert.equal((await files.mkdir('/srv/made/deep', { mode: '0700', user: 'nobody' })).user, 'nobody');
  });

  test("a user's link in /tmp is not followed", async () => {
    await guest.sh('echo secret > /root/secret; su -s /bin/sh nobody -c "ln -s /root/secret /tmp/trap"');
    await assert.rejects(files.read('/tmp/trap'), code('CONFLICT'));
    await assert.rejects(files.write('/tmp/trap', 'x'), code('CONFLICT'));
    assert.equal(await text('/root/secret'), 'secret\n');
  });

  test('a sparse file of 10 GiB is read in part, and written over', async () => {
    await guest.sh('truncate -s 10G /srv/sparse; echo end >> /srv/sparse');
    const end = await files.read('/srv/sparse', { start: 10 * GIB - 4 });
    assert.equal(await end.text(), '\0\0\0\0end\n');
    const zeros = await files.read('/srv/sparse', { start: 5 * GIB, end: 5 * GIB + 16 * MIB });
    const hash = createHash('sha256')
      .update(Buffer.from(await zeros.arrayBuffer()))
      .digest('hex');
    assert.equal(
      hash,
      createHash('sha256')
        .update(Buffer.alloc(16 * MIB))
        .digest('hex'),
    );
    await files.remove('/srv/sparse');
  });

  test('a sparse file of 10 GiB is read as a whole, in bounded memory', THOROUGH, async () => {
    await guest.sh('truncate -s 10G /srv/sparse; echo end >> /srv/sparse');
    const { body } = await files.read('/srv/sparse');
    let seen = 0;
    let tail = Buffer.alloc(0);
    const before = process.memoryUsage.rss();
    for await (const chunk of body as ReadableStream<Uint8Array>) {
      seen += chunk.length;
      tail = Buffer.concat([tail, chunk]).subarray(-8);
    }
    assert.equal(seen, 10 * GIB + 4);
    assert.equal(tail.toString(), '\0\0\0\0end\n');
    assert.ok(process.memoryUsage.rss() - before < 512 * MIB);
    await files.remove('/srv/sparse');
  });

  test('on a full disk the old file stays, and the answer is 507', async () => {
    await guest.sh(
      'mkdir -p /mnt/small; mount -t tmpfs -o size=8m none /mnt/small; echo old > /mnt/small/file',
    );
    const large = Readable.from(
      (function* () {
        for (let count = 0; count < 64; count++) yield Buffer.alloc(256 * 1024, 'x');
      })(),
    );
    await assert.rejects(files.write('/mnt/small/file', large), code('DISK_FULL'));
    assert.equal(await text('/mnt/small/file'), 'old\n');
    assert.equal(await guest.sh('ls -A /mnt/small'), 'file');
    await guest.sh('umount /mnt/small');
  });

  test('of concurrent writes one whole file wins', async () => {
    const contents = ['a', 'b', 'c'].map((letter) => letter.repeat(MIB));
    await Promise.all(contents.map((content) => files.write('/srv/race', content)));
    assert.ok(contents.includes(await text('/srv/race')));
  });

  test('berth cp copies folders in both directions, with modes and names', async () => {
    mkdirSync(join(folder, 'site/sub'), { recursive: true });
    writeFileSync(join(folder, 'site/run.sh'), '#!/bin/sh\n');
    chmodSync(join(folder, 'site/run.sh'), 0o755);
    writeFileSync(Buffer.concat([Buffer.from(join(folder, 'site/sub/')), Buffer.from([0xff, 0x0a])]), 'odd');
    const up = await cli.run(['cp', '-r', join(folder, 'site'), 'files:/srv']);
    assert.deepEqual([up.code, up.err], [0, '']);
    assert.equal(await guest.sh('stat -c %a /srv/site/run.sh'), '755');
    const down = await cli.run(['cp', '-r', 'files:/srv/site', join(folder, 'back')]);
    assert.deepEqual([down.code, down.err], [0, '']);
    assert.equal(statSync(join(folder, 'back/run.sh')).mode & 0o777, 0o755);
    assert.deepEqual(readdirSync(join(folder, 'back/sub'), 'latin1'), ['\xff\n']);
    assert.equal((await cli.run(['cp', 'files:/etc/hostname', folder])).code, 0);
    assert.equal(readFileSync(join(folder, 'hostname'), 'utf8'), await text('/etc/hostname'));
    assert.equal((await cli.run(['cp', 'files:/a', 'other:/b'])).code, 2);
  });

  test('a VM that stops in the middle: the write is an error, the read breaks off, and no half file is there', async () => {
    await files.write('/srv/kept', 'old');
    await guest.sh('truncate -s 1G /srv/large; sync');
    const content = new ReadableStream<Uint8Array>({
      pull: (controller) => controller.enqueue(Buffer.alloc(64 * 1024)),
    });
    const writing = files.write('/srv/kept', content);
    const reading = (await files.read('/srv/large')).body as ReadableStream<Uint8Array>;
    const reader = reading.getReader();
    await reader.read();
    const stopping = guest.stop();
    await assert.rejects(writing);
    await assert.rejects(async () => {
      while (!(await reader.read()).done);
    });
    await stopping;
    await guest.start();
    assert.equal(await text('/srv/kept'), 'old');
    assert.deepEqual(
      (await entriesOf('/srv')).filter(({ name }) => name.startsWith('.')),
      [],
    );
  });
});
