import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { newId } from '../../shared/ids.ts';
import { makeVmFolder, vmFolder } from './record.ts';

test("a VM's user can traverse its folder, whatever the umask is", async (t) => {
  const root = mkdtempSync(join(tmpdir(), 'brec-'));
  t.after(() => rmSync(root, { recursive: true }));
  const before = process.umask(0o077);
  t.after(() => process.umask(before));
  const folder = vmFolder(root, newId('inst'));
  await makeVmFolder(folder);
  assert.equal(statSync(folder.folder).mode & 0o777, 0o711);
});
