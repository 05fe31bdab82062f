import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { GuestCommands } from './guest-agent.ts';
import { memoryUse, networkUse, rootFileSystemUse } from './guest-use.ts';

const OPTIONS = { timeout_ms: 10_000 };

/** A guest whose commands print this, and whose files hold it. */
function saying(text: string): GuestCommands {
  const base64 = Buffer.from(text).toString('base64');
  let read = false;
  const execute = async (command: string) => {
    if (command === 'guest-exec') return { pid: 7 };
    if (command === 'guest-exec-status') return { exited: true, exitcode: 0, 'out-data': base64 };
    if (command !== 'guest-file-read') return 5;
    const piece = read ? '' : base64;
    read = true;
    return { 'buf-b64': piece, eof: read };
  };
  return { execute };
}

test('the use of the root file system as unprivileged users see it, and null if a reply is no number', async () => {
  const use = (text: string) => rootFileSystemUse(saying(text), OPTIONS);
  assert.deepEqual(await use('4096 1000 400 350\n'), { used_bytes: 600 * 4096, total_bytes: 950 * 4096 });
  for (const text of [
    '',
    '4096 0 0 0\n',
    '4096 1 2 0\n',
    '9 9 9\n',
    '999999999999999 999999999999999 1 1\n',
    'stat: no',
  ]) {
    assert.equal(await use(text), null, text);
  }
});

test('the traffic of the first interface, among any number', async () => {
  const use = (text: string) => networkUse(saying(text), OPTIONS);
  const [head, lo] = [
    'Inter-|   Receive  |  Transmit\n face |bytes packets\n',
    '    lo:     840       8    0\n',
  ];
  const veths = Array.from({ length: 300 }, (_, at) => `veth${at}: 1 2 3 4 5 6 7 8 9 10 11\n`).join('');
  const eth0 = '  eth0: 1234567 890 0 0 0 0 0 0 7654321 98 0 0 0 0 0 0\n';
  assert.deepEqual(await use(head + veths + lo + eth0), { received_bytes: 1_234_567, sent_bytes: 7_654_321 });
  const unknown = { received_bytes: null, sent_bytes: null };
  for (const text of ['', head + lo, 'eth0: many\n', `eth0: ${'9'.repeat(30)}\n`]) {
    assert.deepEqual(await use(text), unknown, text);
  }
});

test('the memory in use, if the reply is plausible', async () => {
  const use = (text: string) => memoryUse(saying(text), OPTIONS);
  const told = 'MemTotal:         250000 kB\nMemFree: 1 kB\nMemAvailable:     100000 kB\n';
  assert.deepEqual(await use(told), { used_bytes: 150_000 * 1024, total_bytes: 250_000 * 1024 });
  const unknown = { used_bytes: null, total_bytes: null };
  for (const text of ['', 'MemTotal: 1 kB\n', 'MemTotal: 1 kB\nMemAvailable: 2 kB\n']) {
    assert.deepEqual(await use(text), unknown, text);
  }
});
