import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { ensureDebianPackages, missingPackages, parsePackageList } from './debian-packages.ts';

const OURS = join(import.meta.dirname, '..', '..', 'bin', 'debian-packages.txt');

test('a line of the list has a package and its proof; comments are ignored', () => {
  assert.deepEqual(parsePackageList('# all\n\nacl  setfacl # for passage\nkeys /a/file\n'), [
    { name: 'acl', proof: 'setfacl' },
    { name: 'keys', proof: '/a/file' },
  ]);
  assert.throws(() => parsePackageList('acl\n'), /package list: acl/);
});

test('a package is missing when its command is on no path or its file is not there', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(folder, { recursive: true }));
  const list = join(folder, 'list.txt');
  await writeFile(join(folder, 'own-command'), '', { mode: 0o755 });
  await writeFile(join(folder, 'no-command'), '', { mode: 0o644 });
  await writeFile(list, `a own-command\nb no-command\nc /no/such/file\nd ${list}\nshell sh\nb no-command\n`);
  assert.deepEqual(await missingPackages([list], `relative:${folder}`), ['b', 'c']);
  await assert.rejects(
    ensureDebianPackages({ list_paths: [list], env: { PATH: folder }, is_root: false, say: assert.fail }),
    /^StartError: .*(sudo apt-get install|sudo apt-get update && sudo apt-get install) -y --no-install-recommends b c$|no apt-get/,
  );
});

test("the project's list is valid and names no package twice", async () => {
  const names = parsePackageList(await readFile(OURS, 'utf8')).map(({ name }) => name);
  assert(names.includes('qemu-system-x86'));
  assert.equal(new Set(names).size, names.length);
});
