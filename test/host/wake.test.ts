/** What a template's guest is told over its port, by the protocol of its image; what guests make of it: test/guest/fast-start.test.ts. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { asleep, wakeMachine } from '../../src/host/template/wake-machine.ts';

describe('waking a machine', () => {
  const folder = mkdtempSync(join(tmpdir(), 'bwake-'));
  after(() => rmSync(folder, { recursive: true }));

  /** What a guest hears up to `end` before it says that it is awake. */
  async function heard(takes_files: boolean, end: RegExp): Promise<string> {
    const path = join(folder, `${takes_files}.sock`);
    let text = '';
    const server = createServer((socket) => {
      socket.on('error', () => socket.destroy());
      socket.on('data', (chunk) => {
        text += chunk.toString('latin1');
        if (end.test(text)) socket.write('berth-awake\n');
      });
    });
    await new Promise<void>((resolve) => server.listen(path, resolve));
    const told = {
      kernel_parameters: 'quiet berth.vm=vm_1',
      mac: '52:54:00:01:02:03',
      authorized_keys: ['ssh-ed25519 AAAA one', 'b'],
    };
    try {
      await wakeMachine(path, { takes_files }, told, AbortSignal.timeout(120_000));
    } finally {
      server.close();
    }
    return text;
  }

  test('it is told seed, time and words, and given its host key and the keys that it lets in', async () => {
    const lines = (await heard(true, /^end\n/m)).split('\n').map((line) => line.split(' '));
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

  test('a guest of an older image is told in one line, and given nothing', async () => {
    assert.match(await heard(false, /\n/), /^[0-9a-f]{128} \d+ quiet berth\.vm=vm_1\n$/);
    assert.deepEqual(asleep(Buffer.from('berth-asleep\r\n')), { takes_files: false });
    assert.deepEqual(asleep(Buffer.from('berth-asleep files\n')), { takes_files: true });
    assert.equal(asleep(Buffer.from('berth-awake\n')), null);
  });
});
