/**
 * Fakes a VM that an agent left running: a process with a VM's record, and a server in place of QEMU's monitor whose
 * replies the test decides.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { identityOfProcess } from '../../src/host/qemu/qemu-process.ts';
import {
  makeVmFolder,
  type VmFolder,
  type VmRecord,
  vmFolder,
  writeRecord,
} from '../../src/host/vm/record.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { until } from './waiting.ts';

export interface LeftBehind {
  readonly root: string;
  readonly vms: string;
  readonly folder: VmFolder;
  readonly record: VmRecord;
  readonly instance_id: InstanceId;
  readonly child: ChildProcess;
}

/** The `commit_id` of the disk's head in the records of these VMs. */
export const HEAD_ID = '00000000-0000-4000-8000-000000000001';

const IDLE = 'setInterval(() => {}, 1e6)';

/** Starts the process. `program` replaces the idle program, and gets the folder of the sockets as argument. */
export async function leftBehind(
  t: TestContext,
  change: Partial<VmRecord> = {},
  { program = IDLE, ...user }: { program?: string; uid?: number; gid?: number } = {},
): Promise<LeftBehind> {
  const root = await mkdtemp(join(tmpdir(), 'bad-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const vms = join(root, 'vms');
  const instance_id = newId('inst');
  const folder = vmFolder(vms, instance_id);
  await makeVmFolder(folder);
  await mkdir(folder.runtime);
  const child = spawn(process.execPath, ['-e', program, folder.runtime], {
    stdio: 'ignore',
    ...user,
  });
  t.after(() => child.kill('SIGKILL'));
  const identity = await until('it runs', () => identityOfProcess(child.pid ?? 0));
  const record: VmRecord = {
    ...{
      instance_id,
      vm_id: newId('vm'),
      boot: 1,
      epoch: 1,
      image: 'debian-12',
      image_version: 'a'.repeat(64),
    },
    ...{
      network: { kind: 'user', ssh_forward_port: 1 },
      identity,
      released: true,
      ran: true,
      counts_from: HEAD_ID,
      full_compare: false,
      frozen: false,
    },
    ...{ lazy: null, reboots_done: 0, flush: null },
    ...change,
  };
  await writeRecord(folder, record);
  return { root, vms, folder, record, instance_id, child };
}

/** Its reply to a command: `{return}` or `{error}`; undefined: no reply. */
export type MonitorAnswer = (execute: string, args: unknown) => object | undefined;

/** Speaks the protocol of QEMU's monitor. */
export async function monitorOf(t: TestContext, { runtime }: VmFolder, answer: MonitorAnswer) {
  const clients = new Set<Socket>();
  const monitor = createServer((socket) => {
    clients.add(socket);
    socket.on('close', () => clients.delete(socket));
    socket.on('error', () => undefined);
    socket.write('{"QMP": {"version": {}, "capabilities": []}}\r\n');
    socket.on('data', (data) => {
      for (const line of String(data).trim().split(/\r?\n/)) {
        const { execute, id, arguments: args } = JSON.parse(line);
        const said = execute === 'qmp_capabilities' ? { return: {} } : answer(execute, args);
        if (said) socket.write(`${JSON.stringify({ ...said, id })}\r\n`);
      }
    });
  }).listen(vmSockets(runtime).qmp);
  const close = () => {
    monitor.close();
    for (const each of clients) each.destroy();
  };
  t.after(close);
  await once(monitor, 'listening');
  return { clients, close };
}
