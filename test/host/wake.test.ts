/** The lines that a template's guest gets over its port. test/guest/fast-start.test.ts shows what a guest does with them. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { isAsleep, wakeMachine } from '../../src/host/vm/template-files.ts';

describe('waking a machine', () => {
  const folder = mkdtempSync(join(tmpdir(), 'bwake-'));
  after(() => rmSync(folder, { recursive: true }));

  /** The text that a guest gets before it says that it is awake. */
  async function received(): Promise<string> {
    const path = join(folder, 'guest.sock');
    let text = '';
    const server = createServer((socket) => {
      socket.on('error', () => socket.destroy());
      socket.on('data', (chunk) => {
        text += chunk.toString('latin1');
        if (/^end\n/m.test(text)) socket.write('berth-awake\n');
      });
    });
    await new Promise<void>((resolve) => server.listen(path, resolve));
    const identity = {
      kernel_parameters: 'quiet berth.vm=vm_1',
      mac: '52:54:00:01:02:03',
      authorized_keys: ['ssh-ed25519 AAAA one', 'b'],
    };
    try {
      await wakeMachine(path, identity, AbortSignal.timeout(120_000));
    } finally {
      server.close();
    }
    return text;
  }

  test('the guest gets seed, time, kernel parameters, host key and authorized keys', async () => {
    const lines = (await received()).split('\n').map((line) => line.split(' '));
    assert.deepEqual(
      lines.map(([name]) => name),
      ['seed', 'time', 'words', 'mac', 'file', 'file', 'file', 'end', ''],
    );
    assert.match(lines[0]?.[1] ?? '', /^[0-9a-f]{128}$/);
    assert.equal(lines[2]?.slice(1).join(' '), 'quiet berth.vm=vm_1');
    assert.deepEqual(lines[3], ['mac', '52:54:00:01:02:03']);
    const files = new Map(
      lines.slice(4, 7).map(([, name, hex]) => [name, Buffer.from(hex ?? '', 'hex').toString()]),
    );
    assert.equal(files.get('authorized_keys'), 'ssh-ed25519 AAAA one\nb\n');
    assert.match(files.get('host_key') ?? '', /^-----BEGIN OPENSSH PRIVATE KEY-----\n/);
    assert.match(files.get('host_key_pub') ?? '', /^ssh-ed25519 \S+\n$/);
  });

  test("only a waiting guest's line reports that it waits", () => {
    assert.ok(isAsleep(Buffer.from('berth-asleep files\r\n')));
    assert.ok(!isAsleep(Buffer.from('berth-awake\n')));
  });
});
