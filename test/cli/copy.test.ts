/** `berth cp`, with a host whose guest's files are those of this machine. As root, which the guest's supervisor is. */
import assert from 'node:assert/strict';
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, beforeEach, describe, test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { FIELDS, nextFileCall } from '../support/file-host.ts';
import { serveGuestFiles } from '../support/guest-files.ts';
import { makeKey } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const skip = process.getuid?.() === 0 ? false : 'the files of a guest are those of root';

describe('berth cp', { skip }, async () => {
  const api = await apiForFile();
  const owner = await api.person();
  const { key } = await makeKey(api.db, owner, '*');
  const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });
  const { id } = await api.instance(owner, { name: 'web' });
  await api.as(owner).post(`/v1/instances/${id}/vm`);
  await api.agent.assigned(id);
  await api.agent.ready(id);

  const root = mkdtempSync(join(tmpdir(), 'berth-copy-'));
  after(() => rmSync(root, { recursive: true, force: true }));
  let count = 0;
  /** Folders of this machine and of the guest. */
  let here = '';
  let there = '';
  beforeEach(() => {
    count += 1;
    here = join(root, `here-${count}`);
    there = join(root, `guest-${count}`);
    mkdirSync(here);
    mkdirSync(there);
  });
  /** Runs `berth cp` while the host serves. */
  async function copy(...args: string[]) {
    const stop = serveGuestFiles(api.agent);
    try {
      return await cli.run(['cp', ...args]);
    } finally {
      stop();
    }
  }
  const odd = (folder: string) =>
    Buffer.concat([Buffer.from(`${folder}/`), Buffer.from([0xff, 0x0a, 0x25, 0x20])]);

  test('copies folders in both directions, with modes, empty folders, and names of any bytes', async () => {
    mkdirSync(join(here, 'site/sub/empty'), { recursive: true });
    writeFileSync(join(here, 'site/run.sh'), '#!/bin/sh\n');
    chmodSync(join(here, 'site/run.sh'), 0o750);
    writeFileSync(odd(join(here, 'site/sub')), 'odd');
    writeFileSync(join(here, 'site/sub/é : x'), Buffer.alloc(700_000, 'y'));
    writeFileSync(join(here, 'site/none'), '');
    const up = await copy('-r', join(here, 'site'), `web:${there}`);
    assert.deepEqual([up.code, up.err, up.out], [0, '', 'Copied 4 files, 684 KiB.\n']);
    assert.equal(statSync(join(there, 'site/run.sh')).mode & 0o777, 0o750);
    assert.equal(readFileSync(odd(join(there, 'site/sub')), 'utf8'), 'odd');
    chmodSync(join(there, 'site/sub/empty'), 0o711);
    const down = await copy('-r', `web:${there}/site`, join(here, 'back'));
    assert.deepEqual([down.code, down.err], [0, '']);
    const namesIn = (folder: string) => readdirSync(folder, { recursive: true, encoding: 'latin1' }).sort();
    assert.deepEqual(namesIn(join(here, 'back')), namesIn(join(here, 'site')));
    assert.equal(statSync(join(here, 'back/run.sh')).mode & 0o777, 0o750);
    assert.equal(statSync(join(here, 'back/sub/empty')).mode & 0o777, 0o711);
    assert.deepEqual(readFileSync(join(here, 'back/sub/é : x')), readFileSync(join(here, 'site/sub/é : x')));
  });

  test('copies files into a folder that is there, and else under the new name', async () => {
    for (const name of ['one', 'two']) writeFileSync(join(here, name), name);
    const both = await copy(join(here, 'one'), join(here, 'two'), `web:${there}`, '--json');
    assert.deepEqual(JSON.parse(both.out), { files: 2, bytes: 6, failed: 0 });
    assert.deepEqual(readdirSync(there), ['one', 'two']);
    const named = await copy(join(here, 'one'), `web:${there}/new/three`);
    assert.equal(named.code, 0, named.err);
    assert.equal(readFileSync(join(there, 'new/three'), 'utf8'), 'one');
    const down = await copy(`web:${there}/two`, join(here, 'four'));
    assert.equal(down.code, 0, down.err);
    assert.equal(readFileSync(join(here, 'four'), 'utf8'), 'two');
    const several = await copy(join(here, 'one'), join(here, 'two'), `web:${there}/no-folder`);
    assert.deepEqual([several.code, readdirSync(there)], [2, ['new', 'one', 'two']]);
  });

  test('tells what cannot be copied, copies the rest, and exits with 1', async () => {
    mkdirSync(join(there, 'data/folder'), { recursive: true });
    writeFileSync(join(there, 'data/file'), 'x');
    symlinkSync('folder', join(there, 'data/link'));
    symlinkSync('nowhere', join(there, 'data/broken'));
    const down = await copy('-r', `web:${there}/data`, here);
    assert.equal(down.code, 1);
    assert.match(down.err, /^berth: .*\/data\/broken: There is no such file or folder in the guest\.$/m);
    assert.match(down.err, /^berth: .*\/data\/link: It is not a regular file|is a folder/m);
    assert.match(down.out, /^Copied 1 file, 1 B\.\n$/);
    assert.equal(readFileSync(join(here, 'data/file'), 'utf8'), 'x');
    const folder = await copy(`web:${there}/data`, join(here, 'again'));
    assert.equal(folder.code, 1);
    assert.match(folder.err, /is a folder; copy it with -r/);
    const none = await copy(join(here, 'none'), `web:${there}`);
    assert.equal(none.code, 1);
    assert.match(none.err, /^berth: .*\/none: ENOENT/);
  });

  test('takes one side in a guest, and there a whole path', async () => {
    for (const [args, why] of [
      [['web:/a', 'other:/b'], /not copy from guest to guest/],
      [['a', 'b'], /one side must be in a guest/],
      [['web:a', 'b'], /begins with \/, as in web:\/a/],
      [['a', 'web:/b', 'web:/c'], /must be in one place/],
    ] as const) {
      assert.match(await cli.fails(2, 'cp', ...args), why);
    }
    assert.match(await cli.fails(3, 'cp', 'a', 'nobody:/b'), /nobody/);
  });

  test('shows how much of a file is copied', async () => {
    const running = cli.onTerminal(['cp', 'web:/app.conf', join(here, 'copy')]);
    const list = await nextFileCall(api.agent);
    assert.equal(list.call.action.verb, 'list');
    list.say('failed', '20\0Not a directory');
    const host = await nextFileCall(api.agent);
    host.say('opened', FIELDS);
    await host.hear('range');
    host.say('content', 'hello');
    await until('half of it is shown', () => /app\.conf 45 %, 5 B, \S+ (Ki)?B\/s/.test(running.out()));
    assert.ok(!readdirSync(here).includes('copy'), 'it has its name only once it is whole');
    host.say('content', ' world');
    host.say('done');
    const { code, out } = await running.ended;
    assert.equal(code, 0, out);
    assert.equal(readFileSync(join(here, 'copy'), 'utf8'), 'hello world');
  });

  test('leaves what was there where the copy breaks off, and nothing else', async () => {
    writeFileSync(join(here, 'copy'), 'old');
    const running = cli.start(['cp', 'web:/app.conf', join(here, 'copy')]);
    (await nextFileCall(api.agent)).say('failed', '20\0Not a directory');
    const host = await nextFileCall(api.agent);
    host.say('opened', FIELDS);
    await host.hear('range');
    host.say('content', 'hello');
    host.line.end();
    const { code } = await running.ended;
    assert.notEqual(code, 0);
    assert.deepEqual(readdirSync(here), ['copy']);
    assert.equal(readFileSync(join(here, 'copy'), 'utf8'), 'old');
  });
});
