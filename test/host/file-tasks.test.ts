/**
 * What the guest's supervisor does with files, run on this machine: links of other users, conditions, interrupted and concurrent
 * writes. As root, because it is about files of several users.
 */
import assert from 'node:assert/strict';
import {
  chmodSync,
  chownSync,
  existsSync,
  lchownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import { fieldsOf, rangeBytes } from '../../src/protocol/file-stream.ts';
import { FileTask, list, read, run, write } from '../support/file-task.ts';

const skip = process.getuid?.() === 0 ? false : 'files of several users take root';
const ALICE = 12_345;
const NOBODY = 65_534;

describe('tasks with files', { skip }, () => {
  let root: string;
  let folder: string;
  let count = 0;
  before(() => {
    root = mkdtempSync(join(tmpdir(), 'berth-files-'));
    chmodSync(root, 0o755);
  });
  beforeEach(() => {
    count += 1;
    folder = join(root, String(count));
    mkdirSync(folder, { mode: 0o755 });
  });
  after(() => rmSync(root, { recursive: true, force: true }));

  const at = (...names: string[]) => join(folder, ...names);
  function linkOf(uid: number, target: string, path: string): void {
    symlinkSync(target, path);
    lchownSync(path, uid, uid);
  }
  /** Like /tmp. */
  function openFolder(...names: string[]): string {
    mkdirSync(at(...names));
    chmodSync(at(...names), 0o1777);
    return at(...names);
  }
  const text = async (path: string) => (await read(path)).content.toString();

  test('a written file is read again, whole and in part; missing folders are made', async () => {
    const content = Buffer.from(Array.from({ length: 300_000 }, (_, index) => index % 251));
    const { is_new, fields } = await write(at('a/b/file'), content);
    assert.deepEqual([is_new, fields.size, fields.mode, fields.user], [true, 300_000, '0644', 'root']);
    assert.ok((await read(at('a/b/file'))).content.equals(content));
    assert.ok(
      (await read(at('a/b/file'), 70_000, 100_000)).content.equals(content.subarray(70_000, 170_000)),
    );
    assert.equal(statSync(at('a')).mode & 0o777, 0o755);
    assert.deepEqual(readdirSync(at('a/b')), ['file']);
  });

  test('a file keeps the mode and the owner of the one that it replaces, unless others are named', async () => {
    await write(at('file'), 'one', { mode: '4750' });
    chownSync(at('file'), ALICE, ALICE);
    chmodSync(at('file'), 0o4750);
    const before_it = statSync(at('file'));
    assert.equal((await write(at('file'), 'two')).is_new, false);
    const kept = statSync(at('file'));
    assert.deepEqual([kept.mode, kept.uid, kept.gid], [before_it.mode, ALICE, ALICE]);
    assert.notEqual(kept.ino, before_it.ino);
    await write(at('file'), 'three', { mode: '600', user: 'nobody' });
    assert.deepEqual([statSync(at('file')).mode & 0o7777, statSync(at('file')).uid], [0o600, NOBODY]);
    await assert.rejects(write(at('file'), 'four', { user: 'no-such-user' }), /^Error: user$/);
    assert.equal(await text(at('file')), 'three');
  });

  test('names may have any bytes', async () => {
    const name = Buffer.from([0x0a, 0xff, 0x80, 0x20, 0x25, 0x5c, 0x7e, 0x7d]);
    const path = Buffer.concat([Buffer.from(`${folder}/`), name]);
    await write(path, 'odd');
    assert.equal((await read(path)).content.toString(), 'odd');
    const [found] = await list(folder);
    assert.ok(found?.name.equals(name));
    await run('move', path, at('even'));
    assert.deepEqual(readdirSync(folder), ['even']);
  });

  test('root follows its own link, in any folder, and replaces what it leads to', async () => {
    writeFileSync(at('target'), 'old');
    linkOf(0, at('target'), join(openFolder('open'), 'link'));
    assert.equal(await text(at('open/link')), 'old');
    await write(at('open/link'), 'new');
    assert.equal(readFileSync(at('target'), 'utf8'), 'new');
    assert.equal(readlinkSync(at('open/link')), at('target'));
    assert.equal(await text(`${folder}/open/../open/./link`), 'new');
  });

  test("another user's link in a folder that others may write to is not followed, at the end or on the way", async () => {
    writeFileSync(at('secret'), 'secret');
    mkdirSync(at('safe'));
    linkOf(ALICE, at('secret'), join(openFolder('open'), 'link'));
    linkOf(ALICE, at('safe'), at('open', 'way'));
    mkdirSync(at('home'));
    chownSync(at('home'), ALICE, ALICE);
    linkOf(ALICE, at('secret'), at('home', 'link'));
    for (const path of [at('open/link'), at('home/link')]) {
      await assert.rejects(read(path), /^Error: link$/);
      await assert.rejects(write(path, 'x'), /^Error: link$/);
    }
    for (const verb of ['list', 'directory']) {
      await assert.rejects(run(verb, at('open/way'), '', '1'), /^Error: link$/);
    }
    await assert.rejects(write(at('open/way/new'), 'x'), /^Error: link$/);
    await assert.rejects(run('remove', at('open/way/new'), ''), /^Error: link$/);
    await assert.rejects(run('move', at('secret'), at('open/way/new')), /^Error: link$/);
    assert.equal(readFileSync(at('secret'), 'utf8'), 'secret');
    assert.deepEqual(readdirSync(at('safe')), []);
    // In a folder that only root may write to, root has put it there, or let it be.
    linkOf(ALICE, at('secret'), at('link'));
    assert.equal(await text(at('link')), 'secret');
  });

  test('a link is deleted and moved as a link; a recursive delete follows none', async () => {
    mkdirSync(at('kept'));
    writeFileSync(at('kept/file'), 'kept');
    mkdirSync(at('gone/deep/er'), { recursive: true });
    writeFileSync(at('gone/deep/file'), '');
    linkOf(ALICE, at('kept'), at('gone/link'));
    await assert.rejects(run('remove', at('gone'), ''), /^Error: 39$/);
    await run('remove', at('gone'), '1');
    assert.deepEqual(readdirSync(folder), ['kept']);
    linkOf(0, at('kept'), at('one'));
    await run('move', at('one'), at('two'));
    assert.ok(lstatSync(at('two')).isSymbolicLink());
    await run('remove', at('two'), '1');
    assert.deepEqual(readdirSync(at('kept')), ['file']);
  });

  test('a loop of links, a folder and a device are refused', async () => {
    linkOf(0, 'loop', at('loop'));
    await assert.rejects(read(at('loop')), /^Error: links$/);
    await assert.rejects(read(folder), /^Error: 21$/);
    await assert.rejects(write(folder, 'x'), /^Error: 21$/);
    await assert.rejects(write('/', 'x'), /^Error: 21$/);
    await assert.rejects(read('/dev/null'), /^Error: not_regular$/);
    await assert.rejects(write('/dev/null', 'x'), /^Error: not_regular$/);
    await assert.rejects(run('remove', '/', '1'), /^Error: no_name$/);
    await assert.rejects(write(`${folder}/none/../file`, 'x'), /^Error: 2$/);
  });

  test('a write without its commit leaves nothing, whether its host leaves or it is ended', async () => {
    writeFileSync(at('file'), 'old');
    for (const end of ['input', 'SIGTERM', 'SIGKILL'] as const) {
      const task = new FileTask('write', at('file'), '', '');
      await task.next('opened');
      task.say('content', Buffer.alloc(100_000));
      if (end !== 'input') task.child.kill(end);
      await task.end();
      assert.deepEqual([readdirSync(folder), readFileSync(at('file'), 'utf8')], [['file'], 'old']);
    }
  });

  test('missing folders of a write appear with its file, and not before', async () => {
    const task = new FileTask('write', at('a/b/c'), '', 'nobody');
    assert.equal((await task.next('opened')).length, 0);
    task.say('content', Buffer.from('x'));
    assert.equal(existsSync(at('a')), false);
    task.say('commit');
    await task.next('done');
    await task.end();
    assert.deepEqual([statSync(at('a')).uid, statSync(at('a/b/c')).uid], [NOBODY, NOBODY]);
  });

  test('a condition holds to the end: what has changed meanwhile is not replaced', async () => {
    writeFileSync(at('file'), 'old');
    const { fields } = await read(at('file'));
    const task = new FileTask('write', at('file'), '', '');
    await task.next('opened');
    writeFileSync(at('file'), 'changed');
    task.say('content', Buffer.from('mine'));
    task.say('commit', Buffer.from(fields.version));
    await assert.rejects(task.next('done'), /^Error: changed$/);
    await task.end();
    await assert.rejects(write(at('file'), 'mine', { wanted: '-' }), /^Error: changed$/);
    const now = (await read(at('file'))).fields.version;
    await write(at('file'), 'mine', { wanted: now });
    assert.equal(await text(at('file')), 'mine');
    assert.equal((await write(at('new'), 'x', { wanted: '-' })).is_new, true);
    assert.deepEqual(readdirSync(folder).sort(), ['file', 'new']);
  });

  test('of concurrent writes one whole file wins; of those that may only create, one is done', async () => {
    const contents = ['a', 'b', 'c', 'd'].map((letter) => letter.repeat(200_000));
    await Promise.all(contents.map((content) => write(at('file'), content)));
    assert.ok(contents.includes(await text(at('file'))));
    const created = await Promise.allSettled(
      contents.map((content) => write(at('new'), content, { wanted: '-' })),
    );
    assert.equal(created.filter(({ status }) => status === 'fulfilled').length, 1);
    assert.deepEqual(readdirSync(folder).sort(), ['file', 'new']);
  });

  test('a file that becomes shorter while it is read is an error', async () => {
    writeFileSync(at('file'), Buffer.alloc(4_000_000, 'x'));
    const task = new FileTask('read', at('file'));
    const { size } = fieldsOf(await task.next('opened'));
    truncateSync(at('file'), 100_000);
    task.say('range', rangeBytes(0, size ?? 0));
    const drain = async () => {
      for (;;) await task.next('content');
    };
    await assert.rejects(drain(), /^Error: shrunk$/);
    await task.end();
  });

  test('a file of /proc is read whole, although it says that it is empty', async () => {
    const { content, fields } = await read('/proc/self/status');
    assert.match(content.toString(), /^Name:\tperl\n/);
    assert.equal(fields.size, content.length);
    assert.equal((await read('/proc/kallsyms')).fields.size, null);
  });

  test('entries are sorted by the bytes of their names, and a page begins after a name', async () => {
    for (const name of ['b', 'a', 'Z', 'é', '~', 'c']) writeFileSync(at(name), '');
    mkdirSync(at('d'));
    linkOf(ALICE, '/none', at('link'));
    const names = (found: Awaited<ReturnType<typeof list>>) => found.map(({ name }) => name.toString());
    assert.deepEqual(names(await list(folder)), ['Z', 'a', 'b', 'c', 'd', 'link', '~', 'é']);
    assert.deepEqual(names(await list(folder, 'b', 3)), ['c', 'd', 'link']);
    const types = (await list(folder)).map(({ type, user }) => `${type} ${user}`);
    assert.equal(types[4], 'directory root');
    assert.equal(types[5], `symlink ${ALICE}`);
  });

  test('a new folder has its mode and owner, and one that is there stays as it is', async () => {
    assert.equal((await run('directory', at('a/b'), '2750', 'nobody'))[0], '1'.charCodeAt(0));
    assert.deepEqual([statSync(at('a/b')).mode & 0o7777, statSync(at('a/b')).uid], [0o2750, NOBODY]);
    assert.equal((await run('directory', at('a/b'), '0700', 'root'))[0], '0'.charCodeAt(0));
    assert.equal(statSync(at('a/b')).mode & 0o7777, 0o2750);
    writeFileSync(at('file'), '');
    await assert.rejects(run('directory', at('file'), '', ''), /^Error: 17$/);
  });

  test('a move replaces a file and makes missing folders', async () => {
    writeFileSync(at('one'), 'one');
    writeFileSync(at('two'), 'two');
    await run('move', at('one'), at('two'));
    await run('move', at('two'), at('a/b/three'));
    assert.equal(readFileSync(at('a/b/three'), 'utf8'), 'one');
    await assert.rejects(run('move', at('a'), at('a/b/c')), /^Error: 22$/);
    await assert.rejects(run('move', at('none'), at('x')), /^Error: 2$/);
  });
});
