/** A forced stop of a VM whose guest agent hangs waits for nothing of it. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { powerOffGuest } from '../../src/host/reconciler/guest-steps.ts';
import { Machine } from '../../src/host/vm/machine.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { present } from '../../src/shared/assert.ts';
import { createLog } from '../../src/shared/log.ts';
import { leftBehind, monitorOf } from '../support/fake-vm.ts';

test('a forced stop halts the guest at once, without a request to it', async (t) => {
  const { folder, record, root } = await leftBehind(t);
  const commands: string[] = [];
  await monitorOf(t, folder, (execute) => {
    commands.push(execute);
    return { return: execute === 'query-status' ? { status: 'running' } : {} };
  });
  let asked = 0;
  const hung = createServer((socket) => {
    asked += 1;
    socket.on('error', () => undefined);
  }).listen(vmSockets(folder.runtime).agent);
  t.after(() => hung.close());
  await once(hung, 'listening');
  const log = createLog('test', 'silent');
  const options = {
    folder,
    record,
    log,
    changed: () => undefined,
    lazy: null,
    owner: null,
    guest_network: null,
  };
  const machine = present(await Machine.adopt(options), 'machine');
  t.after(() => machine.release());
  machine.markUp(0);
  // Nobody listens there: who has logged in could not be told either.
  const client = new ControlPlaneClient({ address: `${root}/none`, token: '' });
  t.after(() => client.close());
  await powerOffGuest(machine, client, true, new AbortController().signal);
  assert.deepEqual([machine.view, commands.at(-1), asked], ['off', 'stop', 0]);
});
