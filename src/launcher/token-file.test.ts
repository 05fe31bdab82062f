import assert from 'node:assert/strict';
import { chmod, mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { readJoinToken } from './join.ts';

const AS_ROOT = process.getuid?.() === 0 ? {} : { skip: 'needs root, to stop being root' };
const NOBODY = 65_534;
const folder = await mkdtemp(join(tmpdir(), 'berth-join-'));
after(() => rm(folder, { recursive: true, force: true }));

test(
  'the file of a token becomes private; one that cannot be changed is read all the same',
  AS_ROOT,
  async () => {
    await chmod(folder, 0o755);
    const path = join(folder, 'token');
    await writeFile(path, 'no token', { mode: 0o644 });
    process.seteuid?.(NOBODY);
    try {
      await assert.rejects(readJoinToken(path), /holds no token/);
    } finally {
      process.seteuid?.(0);
    }
    assert.equal((await stat(path)).mode & 0o777, 0o644);
    await assert.rejects(readJoinToken(path), /holds no token/);
    assert.equal((await stat(path)).mode & 0o777, 0o600);
  },
);
