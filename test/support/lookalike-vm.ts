/**
 * Starts a process with the command line of a VM. The code that fences and ends VMs recognises a VM by nothing else.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { after } from 'node:test';
import { identityOfProcess, type ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import type { InstanceId, VmId } from '../../src/shared/ids.ts';
import { until } from './waiting.ts';

const children: ChildProcess[] = [];
after(() => {
  for (const child of children) child.kill('SIGKILL');
});

/** Of the data folder that has this folder of VMs. It ends with the test file. */
export async function lookalikeVm(
  vms: string,
  instance_id: InstanceId,
  vm_id: VmId,
): Promise<ProcessIdentity> {
  const socket = join(vms, instance_id, 'run', 'qmp.sock');
  const child = spawn(
    process.execPath,
    [
      ...['-e', 'setInterval(() => {}, 1e6)', '--', '-name', `guest=${instance_id}`],
      ...[
        '-chardev',
        `socket,id=qmp,path=${socket},server=on,wait=off`,
        '-append',
        `quiet berth.vm=${vm_id}`,
      ],
    ],
    { stdio: 'ignore' },
  );
  children.push(child);
  return until('it runs', () => identityOfProcess(child.pid ?? 0));
}
