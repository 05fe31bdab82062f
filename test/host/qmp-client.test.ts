/** The QMP client against a real QEMU without a machine (`-M none`): no image, no accelerator. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, watch } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, type TestContext, test } from 'node:test';
import {
  JobGoneError,
  QmpClient,
  QmpClosedError,
  QmpError,
  type QmpEvent,
  QmpTimeoutError,
  waitForJob,
} from '../../src/host/qemu/qmp-client.ts';

describe('a QMP client', { timeout: 300_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'bqmp-'));
  const socket_path = join(folder, 'qmp.sock');
  const children: ChildProcess[] = [];
  let qemu: ChildProcess;
  let client: QmpClient;

  async function startQemu(): Promise<void> {
    rmSync(socket_path, { force: true });
    const appeared = Promise.withResolvers<void>();
    const watcher = watch(folder, () => appeared.resolve());
    qemu = spawn(
      'qemu-system-x86_64',
      ['-M', 'none', '-nodefaults', '-no-user-config', '-display', 'none', '-S'].concat([
        '-qmp',
        `unix:${socket_path},server=on,wait=off`,
      ]),
      { stdio: 'ignore' },
    );
    children.push(qemu);
    await appeared.promise;
    watcher.close();
    client = await connectWhenUp();
  }

  /** The socket's name is there a moment before it listens. */
  async function connectWhenUp(): Promise<QmpClient> {
    for (;;) {
      try {
        return await QmpClient.connect(socket_path);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ECONNREFUSED') throw error;
      }
    }
  }

  before(startQemu);
  beforeEach(async () => {
    if (client.closed) await startQemu();
  });
  after(() => {
    client.close();
    for (const child of children) child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  });

  test('a refused command rejects with its class and description', async () => {
    const refused = client.execute('job-cancel', { id: 'nothing' });
    await assert.rejects(refused, (error: unknown) => {
      assert.ok(error instanceof QmpError);
      assert.equal(error.command, 'job-cancel');
      assert.match(error.desc, /not found/i);
      return true;
    });
  });

  test('each of several concurrent commands gets its own reply', async () => {
    const lines = Array.from({ length: 50 }, (_, index) => index);
    const replies = await Promise.all(
      lines.map((index) => client.execute('human-monitor-command', { 'command-line': `print ${index}` })),
    );
    assert.deepEqual(replies.map(Number), lines);
  });

  test('a wait that began before a command gets the command’s event', async () => {
    const resumed = client.waitForEvent((event) => event.event === 'RESUME', { timeout_ms: 60_000 });
    await client.execute('cont');
    assert.equal((await resumed).event, 'RESUME');
    const stopped = client.waitForEvent((event) => event.event === 'STOP', { timeout_ms: 60_000 });
    await client.execute('stop');
    await stopped;
    const never = client.waitForEvent(() => false, { timeout_ms: 20 });
    await assert.rejects(never, QmpTimeoutError);
    const aborted = client.waitForEvent(() => false, {
      timeout_ms: 60_000,
      signal: AbortSignal.abort('over'),
    });
    await assert.rejects(aborted, (reason) => reason === 'over');
  });

  test('a command without a reply times out, and its late reply disturbs nothing', async () => {
    qemu.kill('SIGSTOP');
    await assert.rejects(client.execute('query-status', undefined, { timeout_ms: 50 }), QmpTimeoutError);
    qemu.kill('SIGCONT');
    assert.equal((await client.execute('query-name')).name, undefined);
    assert.equal((await client.execute('query-status')).running, false);
  });

  test('a cancelled backup restores every dirty bit, a finalized one clears them', async () => {
    const size = 1024 * 1024;
    for (const name of ['disk', 'target']) {
      await client.execute('blockdev-add', {
        driver: 'null-co',
        'node-name': name,
        size,
        'read-zeroes': true,
      });
    }
    await client.execute('block-dirty-bitmap-add', { node: 'disk', name: 'b', granularity: 65_536 });
    await client.execute('human-monitor-command', { 'command-line': 'qemu-io disk "write 0 128k"' });
    const dirty = async () => {
      const nodes = await client.execute('query-named-block-nodes', { flat: true });
      return nodes.find((node) => node['node-name'] === 'disk')?.['dirty-bitmaps']?.[0]?.count;
    };
    assert.equal(await dirty(), 131_072);
    for (const outcome of ['cancel', 'finalize'] as const) {
      const job_id = `flush-${outcome}`;
      const backup = {
        'job-id': job_id,
        device: 'disk',
        target: 'target',
        sync: 'bitmap',
        bitmap: 'b',
        'bitmap-mode': 'on-success',
        'auto-finalize': false,
        'auto-dismiss': false,
      } as const;
      await client.execute('transaction', { actions: [{ type: 'blockdev-backup', data: backup }] });
      const pending = await waitForJob(client, job_id, ['pending'], { timeout_ms: 60_000 });
      assert.equal(pending.status, 'pending');
      await client.execute(`job-${outcome}`, { id: job_id });
      const concluded = await waitForJob(client, job_id, ['concluded'], { timeout_ms: 60_000 });
      assert.equal(concluded.error === undefined, outcome === 'finalize');
      await client.execute('job-dismiss', { id: job_id });
      assert.equal(await dirty(), outcome === 'cancel' ? 131_072 : 0);
      await assert.rejects(waitForJob(client, job_id, ['concluded'], { timeout_ms: 100 }), JobGoneError);
    }
    await client.execute('blockdev-del', { 'node-name': 'disk' });
    await client.execute('blockdev-del', { 'node-name': 'target' });
  });

  test('a stuck job times out, and can still be killed', async () => {
    for (const name of ['disk', 'target']) {
      await client.execute('blockdev-add', { driver: 'null-co', 'node-name': name, size: 2 ** 30 });
    }
    await client.execute('blockdev-backup', {
      'job-id': 'slow',
      device: 'disk',
      target: 'target',
      sync: 'full',
      speed: 65_536,
      'auto-dismiss': false,
    });
    await assert.rejects(waitForJob(client, 'slow', ['pending'], { timeout_ms: 50 }), QmpTimeoutError);
    await client.execute('job-cancel', { id: 'slow' });
    assert.equal((await waitForJob(client, 'slow', ['pending'], { timeout_ms: 60_000 })).status, 'concluded');
  });

  test('a job of a QEMU that does not answer is not waited for past the signal', async () => {
    const wanted = new AbortController();
    qemu.kill('SIGSTOP');
    try {
      const options = { timeout_ms: 60_000, signal: wanted.signal };
      const waiting = waitForJob(client, 'slow', ['concluded'], options);
      setImmediate(() => wanted.abort(new Error('something else is wanted')));
      await assert.rejects(waiting, /something else is wanted/);
    } finally {
      qemu.kill('SIGCONT');
    }
  });

  test('a second client is served once the first has disconnected', async () => {
    client.close();
    await assert.rejects(client.execute('query-status'), { name: 'QmpClosedError', by_us: true });
    client = await QmpClient.connect(socket_path);
    assert.equal((await client.execute('query-status')).running, false);
  });

  test('when QEMU is killed, every pending call rejects and the close is reported', async () => {
    const closed = Promise.withResolvers<QmpClosedError>();
    client.onClose(closed.resolve);
    qemu.kill('SIGSTOP');
    const pending = [client.execute('query-status'), client.execute('query-jobs')];
    const waiting = client.waitForEvent(() => false, { timeout_ms: 30_000 });
    const settled = Promise.allSettled([...pending, waiting]);
    qemu.kill('SIGKILL');
    assert.equal((await closed.promise).by_us, false);
    for (const outcome of await settled) {
      assert.ok(outcome.status === 'rejected' && outcome.reason instanceof QmpClosedError);
    }
    const late = Promise.withResolvers<QmpClosedError>();
    client.onClose(late.resolve);
    assert.ok((await late.promise) instanceof QmpClosedError);
  });
});

test('a peer that sends no greeting, an endless line, or no JSON is refused', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'bqmp-'));
  const path = join(folder, 's');
  let say = '';
  const server = createServer((socket) => socket.on('error', () => {}).write(say)).listen(path);
  try {
    await once(server, 'listening');
    await assert.rejects(QmpClient.connect(path, { timeout_ms: 50 }), QmpTimeoutError);
    say = 'x'.repeat(2_000);
    await assert.rejects(QmpClient.connect(path, { max_line_bytes: 1_000 }), /longer than 1000 bytes/);
    say = 'no json\n';
    await assert.rejects(QmpClient.connect(path), QmpClosedError);
    await assert.rejects(QmpClient.connect(join(folder, 'absent')), { code: 'ENOENT' });
  } finally {
    server.close();
    rmSync(folder, { recursive: true, force: true });
  }
});

test('a compromised QEMU: an invalid message ends the connection, an event without data does no harm', async (t) => {
  const sayings = [
    'null',
    '7',
    '[]',
    '{"event":"SHUTDOWN"}',
    '{"event":"RESET","data":null}',
    '{"id":{},"return":1}',
  ];
  const { connected, say } = await impostor(t);
  for (const saying of sayings) {
    const client = await connected();
    const heard: QmpEvent[] = [];
    client.onEvent((event) => heard.push(event));
    say(`${saying}\n{"event":"STOP"}\n`);
    if (/^[7n]/.test(saying)) await new Promise((resolve) => client.onClose(resolve));
    else await client.execute('query-status');
    for (const event of heard) assert.equal(typeof event.data, 'object');
    assert.equal(heard.at(-1)?.event, client.closed ? undefined : 'STOP');
    client.close();
  }
});

test('a compromised QEMU: its messages are truncated and sanitised', async (t) => {
  const { connected, answer } = await impostor(t);
  const client = await connected();
  answer({ error: { class: ['x'], desc: `\u001b[2J\u202e${'bad '.repeat(10_000)}` } });
  await assert.rejects(client.execute('query-status'), (error: unknown) => {
    assert.ok(error instanceof QmpError);
    assert.ok(error.desc.length === 300 && /^bad bad [a-z ]*…$/.test(error.desc), error.desc);
    assert.equal(error.error_class, 'GenericError');
    return true;
  });
  client.close();
});

test('a compromised QEMU: a flood of events is read no faster than a budget allows', async (t) => {
  const { connected, say, waiting } = await impostor(t);
  const client = await connected();
  let heard = 0;
  client.onEvent(() => heard++);
  const began = performance.now();
  say('{"event":"RESET","data":{}}\n'.repeat(1_000_000));
  for (let turn = 0; turn < 200; turn++) await new Promise((resolve) => setImmediate(resolve));
  const seconds = (performance.now() - began) / 1_000;
  // An event counts for 1 KiB, of 4 MiB at once and 4 MiB a second; a read of 64 KiB holds some 2,400.
  assert.ok(heard > 0 && heard <= 4_096 * (1 + seconds) + 2_400, `${heard} in ${seconds} s`);
  assert.ok(waiting() > 0, 'the rest waits at its sender');
  client.close();
});

/** Listens as QEMU does, and says what it is told to. */
async function impostor(t: TestContext) {
  const folder = mkdtempSync(join(tmpdir(), 'bqmp-'));
  const path = join(folder, 's');
  let reply: object = { return: { status: 'running' } };
  let peer: Socket | undefined;
  const server = createServer((socket) => {
    peer = socket;
    socket.on('error', () => {}).write('{"QMP":{}}\n');
    socket.on('data', (data) => {
      for (const line of String(data).trim().split('\n')) {
        const { id, execute } = JSON.parse(line);
        const said = execute === 'qmp_capabilities' ? { return: {} } : reply;
        socket.write(`${JSON.stringify({ id, ...said })}\n`);
      }
    });
  }).listen(path);
  t.after(() => {
    peer?.destroy();
    server.close();
    rmSync(folder, { recursive: true, force: true });
  });
  await once(server, 'listening');
  return {
    connected: () => QmpClient.connect(path),
    say: (text: string) => peer?.write(text),
    waiting: () => peer?.writableLength ?? 0,
    answer: (instead: object) => {
      reply = instead;
    },
  };
}
