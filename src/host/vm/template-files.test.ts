import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { makeHostKey } from './template-files.ts';

test('a new host key is readable by OpenSSH, complete, and never the same twice', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'bhk-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const seen = new Set<string>();
  for (let round = 0; round < 4; round++) {
    const { host_key, host_key_pub } = makeHostKey();
    const path = join(folder, 'key');
    writeFileSync(path, host_key, { mode: 0o600 });
    assert.equal(execFileSync('ssh-keygen', ['-y', '-f', path], { encoding: 'utf8' }), host_key_pub);
    seen.add(host_key_pub);
  }
  assert.equal(seen.size, 4);
});
