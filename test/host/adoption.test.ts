/** What an agent does with a machine that it cannot take over at once: it is not given up, and nobody is in the way of the next try. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { HostContext } from '../../src/host/host-context.ts';
import { Machine } from '../../src/host/runner/machine.ts';
import { makeVmFolder, type VmRecord, vmFolder, writeRecord } from '../../src/host/runner/record.ts';
import { VmRunner } from '../../src/host/runner/vm-runner.ts';
import { identityOf, isAlive } from '../../src/host/vm/process-identity.ts';
import { vmSockets } from '../../src/host/vm/qemu-command.ts';
import { newId } from '../../src/lib/ids.ts';
import { createLog } from '../../src/lib/log.ts';
import { until } from '../support/waiting.ts';

const log = createLog('test', 'silent');

/** A process with a record, in the place of a VM that an agent has left. */
async function leftBehind(t: TestContext, change: Partial<VmRecord> = {}) {
  const vms = await mkdtemp(join(tmpdir(), 'bad-'));
  t.after(() => rm(vms, { recursive: true, force: true }));
  const child = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1e6)'], { stdio: 'ignore' });
  t.after(() => child.kill('SIGKILL'));
  const identity = await until('it runs', () => identityOf(child.pid ?? 0));
  const instance_id = newId('inst');
  const folder = vmFolder(vms, instance_id);
  await makeVmFolder(folder);
  await mkdir(folder.runtime);
  const record: VmRecord = {
    ...{ instance_id, vm_id: newId('vm'), boot: 1, epoch: 1, image_version: 'a'.repeat(64) },
    ...{ ssh_forward_port: 1, identity, released: true, full_compare: false, frozen: false },
    ...{ lazy: null, reboots_done: 0, flush: null },
    ...change,
  };
  await writeRecord(folder, record);
  return { vms, folder, record, instance_id };
}

test('a machine whose image is not to be found yet is taken over once it is', async (t) => {
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
  const context = { paths: { vms }, log: counting, client: {}, vm_gid: null } as unknown as HostContext;
  const runner = new VmRunner(context, instance_id);
  const running = runner.run();
  await until('it is looked for more than once', () => tries > 1);
  await writeFile(base_path, Buffer.alloc(65_536));
  // It has no monitor: whoever takes it over ends it.
  await until('it was looked at again', () => !isAlive(record.identity));
  runner.close();
  await running;
});

test('a machine whose state cannot be found is let go of: its monitor is free for the next try', async (t) => {
  const { folder, record } = await leftBehind(t);
  const clients = new Set<Socket>();
  const monitor = createServer((socket) => {
    clients.add(socket);
    socket.on('close', () => clients.delete(socket));
    socket.on('error', () => undefined);
    socket.write('{"QMP": {"version": {}, "capabilities": []}}\r\n');
    socket.on('data', (data) => {
      for (const line of String(data).trim().split(/\r?\n/)) {
        const { execute, id } = JSON.parse(line);
        const refused = { error: { class: 'GenericError', desc: 'not now' }, id };
        const answer = execute === 'qmp_capabilities' ? { return: {}, id } : refused;
        socket.write(`${JSON.stringify(answer)}\r\n`);
      }
    });
  }).listen(vmSockets(folder.runtime).qmp);
  t.after(() => {
    monitor.close();
    for (const each of clients) each.destroy();
  });
  await once(monitor, 'listening');
  const options = { folder, record, log, changed: () => undefined, lazy: null };
  await assert.rejects(Machine.adopt(options), /not now/);
  await until('the monitor is free', () => clients.size === 0);
});
