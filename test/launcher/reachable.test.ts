import assert from 'node:assert/strict';
import { chmod, mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { makeReachable, type UnprivilegedUser } from '../../src/launcher/reachable.ts';
import { runCommand } from '../../src/launcher/run-command.ts';
import { AS_ROOT, temporaryFolder } from './processes.ts';

const STRANGER: UnprivilegedUser = { uid: 1_999_001, gid: 1_999_001, name: 'a test' };

/** As the stranger. */
async function can(test_option: '-r' | '-x', path: string): Promise<boolean> {
  return (
    (await runCommand('/usr/bin/test', [test_option, path], { uid: STRANGER.uid, gid: STRANGER.gid }))
      .code === 0
  );
}

test('another user reaches a folder below 0700 folders, and can list none of them', AS_ROOT, async (t) => {
  const home = await temporaryFolder(t);
  const clone = join(home, 'clone');
  const data = join(clone, 'data');
  await mkdir(clone, { mode: 0o700 });
  await mkdir(data, { mode: 0o755 });
  await writeFile(join(data, 'file'), 'text', { mode: 0o644 });
  assert.equal(await can('-r', join(data, 'file')), false);

  const said: string[] = [];
  await makeReachable(data, STRANGER, (line) => said.push(line));
  assert.equal(await can('-r', join(data, 'file')), true);
  for (const folder of [home, clone]) assert.equal(await can('-r', folder), false);
  assert.equal(said.length, 2);
  assert.match(said[0] ?? '', new RegExp(`granted group ${STRANGER.gid} \\(a test\\) traversal of ${home} `));

  await makeReachable(data, STRANGER, (line) => said.push(line));
  assert.equal(said.length, 2, 'the second time there is nothing to grant');
});

test('an ACL entry that a chmod has masked stays masked', AS_ROOT, async (t) => {
  const home = await temporaryFolder(t);
  const other = { uid: 1_999_002, gid: 1_999_002 };
  assert.equal((await runCommand('setfacl', ['-m', `g:${other.gid}:rwx`, home])).code, 0);
  await chmod(home, 0o700);
  await makeReachable(home, STRANGER, () => undefined);
  assert.equal(await can('-x', home), true);
  assert.notEqual((await runCommand('/usr/bin/test', ['-r', home], other)).code, 0);
  assert.notEqual((await runCommand('/usr/bin/test', ['-w', home], other)).code, 0);
});

test('folders that everyone can traverse are left as they are', AS_ROOT, async (t) => {
  const home = await temporaryFolder(t);
  await chmod(home, 0o751);
  const said: string[] = [];
  await makeReachable(home, STRANGER, (line) => said.push(line));
  assert.deepEqual(said, []);
  assert.equal((await stat(home)).mode & 0o777, 0o751);
});

test('without support for ACLs the error names the folder and both remedies', AS_ROOT, async (t) => {
  // procfs has no ACLs, and a process's map_files can be passed by its owner only.
  const folder = `/proc/${process.pid}/map_files`;
  if (await can('-x', folder)) return t.skip('no folder without ACLs here');
  await assert.rejects(
    makeReachable(folder, STRANGER, () => undefined),
    {
      name: 'StartError',
      exit_code: 2,
      message: new RegExp(`cannot traverse ${folder} .*BERTH_DATA_DIR.*chmod o\\+x ${folder}`),
    },
  );
});
