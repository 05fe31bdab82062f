/** What an agent does with a machine that it cannot take over at once: it is not given up, and nobody is in the way of the next try. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chownSync, existsSync, readdirSync, statSync, symlinkSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { HostContext } from '../../src/host/host-context.ts';
import { vmUser } from '../../src/host/qemu/confinement.ts';
import { vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { isProcessAlive, isStopped, killProcess } from '../../src/host/qemu/qemu-process.ts';
import { Reconciler } from '../../src/host/reconciler/reconciler.ts';
import { Machine } from '../../src/host/vm/machine.ts';
import { errnoOf } from '../../src/shared/errors.ts';
import { createLog } from '../../src/shared/log.ts';
import { leftBehind, monitorOf } from '../support/fake-vm.ts';
import { only } from '../support/only.ts';
import { until } from '../support/waiting.ts';

const log = createLog('test', 'silent');
const PARTS = { client: {} };

test('a machine whose image is missing is adopted once the image is there', async (t) => {
  const image = await mkdtemp(join(tmpdir(), 'bai-'));
  t.after(() => rm(image, { recursive: true, force: true }));
  const base_path = join(image, 'rootfs.img');
  const { vms, record, instance_id } = await leftBehind(t, { lazy: { size_bytes: 65_536, base_path } });
  let tries = 0;
  const counting = createLog('test', 'warn', {
    write: (line) => {
      if (line.includes('rootfs.img')) tries += 1;
    },
  });
  const context = only<HostContext>({ ...PARTS, paths: { vms }, log: counting, vm_gid: null });
  const runner = new Reconciler(context, instance_id);
  const running = runner.run();
  await until('it is looked for more than once', () => tries > 1);
  await writeFile(base_path, Buffer.alloc(65_536));
  // It has no monitor: whoever takes it over ends it.
  await until('it was looked at again', () => !isProcessAlive(record.identity));
  runner.close();
  await running;
});

test('a machine whose state cannot be queried is disconnected, which frees its monitor for the next attempt', async (t) => {
  const { folder, record } = await leftBehind(t);
  const refused = { error: { class: 'GenericError', desc: 'not now' } };
  const { clients } = await monitorOf(t, folder, () => refused);
  const options = {
    folder,
    record,
    log,
    changed: () => undefined,
    lazy: null,
    owner: null,
    guest_network: null,
  };
  await assert.rejects(Machine.adopt(options), /not now/);
  await until('the monitor is free', () => clients.size === 0);
});

/** Listens as QEMU does, for one connection at a time, and takes none before there is a file `go`. */
const SLOW_MONITOR = `
  const { existsSync, writeFileSync } = require('node:fs');
  const folder = process.argv[1];
  const server = require('node:net').createServer((socket) => {
    socket.on('error', () => undefined).write('{"QMP": {}}\\n');
    socket.on('data', (data) => {
      for (const line of String(data).trim().split('\\n'))
        socket.write(JSON.stringify({ id: JSON.parse(line).id, return: { status: 'running' } }) + '\\n');
    });
  });
  server.listen({ path: folder + '/qmp.sock', backlog: 1 }, () => {
    writeFileSync(folder + '/listens', '');
    while (!existsSync(folder + '/go')) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);
  });
`;

test('a machine whose monitor accepts no connection for a while is waited for, not ended', async (t) => {
  const { folder, record } = await leftBehind(t, {}, { program: SLOW_MONITOR });
  await until('it listens', () => existsSync(join(folder.runtime, 'listens')));
  // As of agents that died.
  let full = false;
  await until('its queue is full', async () => {
    const socket = connect(vmSockets(folder.runtime).qmp);
    t.after(() => socket.destroy());
    socket.once('error', (error) => {
      full ||= errnoOf(error) === 'EAGAIN';
    });
    await Promise.race([once(socket, 'connect'), once(socket, 'error')]).catch(() => undefined);
    return full;
  });
  const adopting = Machine.adopt({
    folder,
    record,
    log,
    changed: () => undefined,
    lazy: null,
    owner: null,
    guest_network: null,
  });
  await writeFile(join(folder.runtime, 'go'), '');
  const machine = await adopting;
  assert.ok(machine);
  assert.ok(isProcessAlive(record.identity));
  machine.release();
});

test('a machine whose process is stopped is not killed because it does not answer', async (t) => {
  const { folder, record } = await leftBehind(t);
  const silent = createServer().listen(vmSockets(folder.runtime).qmp);
  t.after(() => silent.close());
  await once(silent, 'listening');
  killProcess(record.identity, 'SIGSTOP');
  await until('it is paused', () => isStopped(record.identity));
  const options = {
    folder,
    record,
    log,
    changed: () => undefined,
    lazy: null,
    owner: null,
    guest_network: null,
    patience_ms: 50,
  };
  await assert.rejects(Machine.adopt(options), /its process is paused/);
  assert.ok(isProcessAlive(record.identity));
});

test('before anything in the sockets folder is opened, its user loses it and foreign files are removed', {
  skip: process.getuid?.() === 0 ? false : 'not root',
}, async (t) => {
  const user = vmUser(18);
  const { vms, folder, instance_id, record } = await leftBehind(t, {}, user);
  const host = createServer().listen(join(vms, 'host.sock'));
  t.after(() => host.close());
  let opened = false;
  host.on('connection', () => {
    opened = true;
  });
  const { qmp, console } = vmSockets(folder.runtime);
  for (const path of [qmp, console]) symlinkSync(join(vms, 'host.sock'), path);
  chownSync(folder.runtime, user.uid, user.gid);
  const context = only<HostContext>({ ...PARTS, paths: { vms }, log, vm_gid: user.gid });
  const runner = new Reconciler(context, instance_id);
  const running = runner.run();
  await until('without a monitor of its own it is ended', () => !isProcessAlive(record.identity));
  runner.close();
  await running;
  assert.deepEqual([opened, readdirSync(folder.runtime), statSync(folder.runtime).uid], [false, [], 0]);
});
