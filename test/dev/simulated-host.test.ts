/**
 * The simulated host, through the public API alone: what a user can rely on with a real host holds with it too, as far as its own head
 * promises it. Without QEMU and without root.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { WebSocket } from 'ws';
import { Berth, type BerthError, type Instance } from '../../client/src/berth.ts';
import { freeDeleted } from '../../src/control-plane/disks/remove-objects.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { SimulatedHost } from '../simulated-host/simulated-host.ts';
import { apiForFile, newName } from '../support/api.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
// The simulated host takes its place.
await api.agent.silence();

async function connect(): Promise<SimulatedHost> {
  const client = new ControlPlaneClient({ address: api.internal_origin, token: api.host_token });
  const host = new SimulatedHost({ client });
  await host.connect();
  return host;
}
let host = await connect();
api.beforeClose(() => host.close());

const owner = await api.person();
const berth = new Berth({ url: api.origin, token: owner.session });
const make = (change = {}): Promise<Instance> => berth.instances.create({ name: newName(), ...change });
const content = async (id: string, path: string) => (await berth.files(id).read(path)).text();

/** The first that comes back from a stream, at least as long as what was sent. */
async function returned(id: string, path: string, sent: string): Promise<string> {
  const headers = { authorization: `Bearer ${owner.session}` };
  const socket = new WebSocket(`${api.origin.replace('http', 'ws')}/v1/instances/${id}/${path}`, { headers });
  let got = '';
  let is_closed = false;
  socket.on('message', (data) => {
    got += String(data);
  });
  socket.on('close', () => {
    is_closed = true;
  });
  await once(socket, 'open');
  socket.send(Buffer.from(sent));
  // A terminal shows a return as two characters.
  const length = sent.length + (sent.endsWith('\r') ? 1 : 0);
  await until('it comes back, or is closed', () => got.length >= length || is_closed);
  if (is_closed) throw new Error('it was closed');
  socket.close();
  return got;
}

/** An instance whose VM runs. */
async function running(change = {}): Promise<Instance> {
  const instance = await make(change);
  await berth.vm(instance.id).start();
  return instance;
}

describe('states', () => {
  test('a VM starts, restarts, stops and starts again with its files', async () => {
    const { id } = await running();
    const vm = berth.vm(id);
    await berth.files(id).write('/root/kept', 'kept');
    await vm.restart();
    assert.equal((await vm.get()).state, 'running');
    const stopped = await vm.stop();
    assert.deepEqual([stopped.state, stopped.disk.dirty_bytes], ['stopped', 0]);
    assert.ok(stopped.disk.generation > 0, 'the stop has saved the file');
    await vm.start();
    assert.equal(await content(id, '/root/kept'), 'kept');
  });

  test('a suspended VM resumes with what ran in it', async () => {
    const { id } = await running();
    const vm = berth.vm(id);
    const waiting = await vm.startExec(['cat'], { stdin: true });
    assert.equal((await vm.suspend()).state, 'suspended');
    await vm.start();
    await waiting.write('still here');
    await waiting.closeInput();
    const { stdout, exit_code } = await waiting.collect();
    assert.deepEqual([stdout, exit_code], ['still here', 0]);
  });

  test('a guest that powers off is stopped, and one that crashes has failed and can start again', async () => {
    const { id } = await running();
    const vm = berth.vm(id);
    await vm.exec('poweroff');
    await until('it is stopped', async () => (await vm.get()).state === 'stopped');
    await vm.start();
    void vm.exec('crash').catch(() => undefined);
    const failed = await until('it has failed', async () => {
      const found = await vm.get();
      return found.state === 'failed' && found;
    });
    assert.equal(failed.reason?.code, 'guest_panicked');
    await vm.start();
  });

  test('a deleted instance goes, also while its VM runs', async (t) => {
    const { id } = await running();
    await berth.instances.delete(id);
    const folder = await mkdtemp(join(tmpdir(), 'berth-objects-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const store = await FolderStore.open(folder);
    // Its host has to say so first.
    await until('it is gone', async () => {
      await freeDeleted(api.db, store, api.context.log);
      return (await api.as(owner).get(`/v1/instances/${id}`)).status === 404;
    });
  });

  test('a VM whose simulator was started again has failed, and starts with an empty disk and a reason', async () => {
    const { id } = await running();
    await berth.files(id).write('/root/lost', 'lost');
    await host.close();
    host = await connect();
    const vm = berth.vm(id);
    await until('it has failed', async () => (await vm.get()).state === 'failed');
    const started = await vm.start();
    assert.equal((await started.get()).reason?.code, 'recovered');
    await assert.rejects(content(id, '/root/lost'), (error: BerthError) => error.status === 404);
  });
});

describe('receipts', () => {
  test('a flush of a written file commits a generation, and a second one without a change does not', async () => {
    const { id } = await running();
    await berth.files(id).write('/data', 'x');
    const first = await berth.vm(id).flush();
    assert.ok(first.generation > 0 && first.durable_at !== null);
    const second = await berth.vm(id).flush();
    assert.deepEqual([second.generation, second.dirty_bytes], [first.generation, 0]);
    const kept: number[] = [];
    for await (const { generation } of berth.instances.generations(id)) kept.push(generation);
    assert.ok(kept.includes(first.generation));
  });

  test('a fork begins with the generation of its parent', async () => {
    const { id } = await running();
    await berth.files(id).write('/data', 'x');
    await berth.vm(id).flush();
    const fork = await berth.instances.fork(id, { name: newName() });
    await berth.vm(fork.id).start();
    assert.equal((await berth.vm(fork.id).get()).state, 'running');
  });
});

describe('calls', () => {
  test('an exec has output, errors, an exit code, input, a terminal and a timeout', async () => {
    const { id } = await running();
    const vm = berth.vm(id);
    const ran = await vm.exec('echo "a b" && cat /absent; echo kept > /root/it && cat /root/it');
    assert.deepEqual(
      [ran.stdout, ran.stderr, ran.exit_code],
      ['a b\nkept\n', 'cat: No such file or directory\n', 0],
    );
    assert.equal((await vm.exec(['no-such-program'])).exit_code, 127);
    assert.equal((await vm.exec(['cat'], { input: 'given' })).stdout, 'given');
    const slow = await vm.startExec(['sleep', '60'], { timeout_seconds: 1 });
    assert.equal((await slow.wait()).timed_out, true);
    const killed = await vm.startExec(['sleep', '60']);
    await killed.kill();
    assert.equal((await killed.wait()).state, 'exited');
    const shell = await vm.startExec(['sh'], { tty: { columns: 80, rows: 24 } });
    await shell.write('echo typed\rsleep 60\r');
    await shell.write('\x03');
    await shell.write('exit 3\r');
    const { stdout, exit_code } = await shell.collect();
    for (const shown of ['# echo typed\r\n', '\r\ntyped\r\n', 'sleep 60\r\n', '^C\r\n', '# exit 3\r\n'])
      assert.ok(stdout.includes(shown), `${JSON.stringify(shown)} in ${JSON.stringify(stdout)}`);
    assert.equal(exit_code, 3);
  });

  test('files are written, read in part, listed, moved and removed, and refused where a real guest refuses', async () => {
    const { id } = await running();
    const files = berth.files(id);
    const made = await files.write('/srv/a/one', 'content');
    assert.deepEqual([made.type, made.size, made.user], ['file', 7, 'root']);
    const part = await files.read('/srv/a/one', { start: 3, end: 5 });
    assert.equal(await part.text(), 'te');
    await files.mkdir('/srv/b');
    await files.move('/srv/a/one', '/srv/b/two');
    const names: string[] = [];
    for await (const { path } of files.list('/srv/b')) names.push(String(path));
    assert.deepEqual(names, ['/srv/b/two']);
    await assert.rejects(files.remove('/srv/b'), (error: BerthError) => error.status === 409);
    await assert.rejects(files.write('/srv/b', 'x'), (error: BerthError) => error.status === 409);
    await files.remove('/srv/b', { recursive: true });
    await assert.rejects(content(id, '/srv/b/two'), (error: BerthError) => error.status === 404);
  });

  test('the console shows the boot and takes commands; a port that listens answers, and another does not', async () => {
    const { id } = await running();
    const log = await api.as(owner).get(`/v1/instances/${id}/vm/console`);
    assert.match(log.text, /simulated guest/);
    assert.equal(await returned(id, 'vm/forward?port=7', 'there and back'), 'there and back');
    const { ticket } = await api
      .as(owner)
      .post<{ ticket: string }>(`/v1/instances/${id}/vm/console/ticket`)
      .then(({ body }) => body);
    assert.match(await returned(id, `vm/console/stream?ticket=${ticket}`, 'hostname\r'), /^hostname\r\n/);
    await assert.rejects(returned(id, 'vm/forward?port=5432', 'x'));
  });

  test('metrics have a sample', async () => {
    const { id } = await running();
    const { status } = await api.as(owner).get(`/v1/instances/${id}/vm/metrics`);
    assert.equal(status, 200);
  });
});
