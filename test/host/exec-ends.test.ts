/** Ends of execs that a machine sent just before its own: they are read, and reported before the end of their boot. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { FROM_GUEST } from '../../src/host/execs/exec-channel.ts';
import { HostExecs } from '../../src/host/execs/host-execs.ts';
import { GuestAgent } from '../../src/host/guest/guest-agent.ts';
import { vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { Reporter } from '../../src/host/reconciler/reconciler.ts';
import { vmFolder } from '../../src/host/vm/record.ts';
import type { ExecsReport } from '../../src/protocol/exec-types.ts';
import { present } from '../../src/shared/assert.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { fromGuest, supervisorAt } from '../support/exec-supervisor.ts';
import { strictControlPlane } from '../support/strict-control-plane.ts';
import { until } from '../support/waiting.ts';

test('an exit that is unread when its machine ends is reported, and before the end of the machine', async (t) => {
  const root = mkdtempSync(join(tmpdir(), 'bxe-'));
  t.after(() => rmSync(root, { recursive: true, force: true }));
  const instance_id: InstanceId = newId('inst');
  const folder = vmFolder(root, instance_id);
  mkdirSync(folder.runtime, { recursive: true });
  const supervisor = await supervisorAt(t, vmSockets(folder.runtime).execs);
  const { client, said } = await strictControlPlane(t);
  const agent = new GuestAgent(vmSockets(folder.runtime).agent);
  t.after(() => agent.close());
  let ended = false;
  const machine = { view: 'up' as const, resets: 0, agent, folder };
  const log = createLog('test', 'silent');
  const host = new HostExecs({ paths: { vms: root }, client, log }, () => [
    { instance_id, machine: ended ? null : machine },
  ]);
  const execs = present(host.of(instance_id), 'execs of the instance');
  t.after(() => execs.close());
  execs.look(machine);
  await until('its supervisor answers', () => execs.connected, { every_ms: 5 });
  const exec_id = newId('exec');
  const call = { kind: 'exec_start', instance_id, vm_id: newId('vm'), exec_id, command: ['true'] } as const;
  const words = { environment: [], cwd: '/', user: 'root', tty: null, stdin: false, timeout_ms: null };
  assert.equal(await execs.start(machine, { ...call, ...words }), null);
  // By no signal, code 7, not timed out; no output, just now.
  const exit = Buffer.concat([Buffer.of(0, 7, 0), Buffer.alloc(16)]);
  supervisor.end(fromGuest(FROM_GUEST.exited, exec_id.slice('exec_'.length), exit));
  ended = true;
  execs.look(null);
  const never = new AbortController().signal;
  const reporter = new Reporter({ client, log }, never, () => host.reportEnds(instance_id, never));
  const reason = { code: 'vm_died', message: 'It died.' } as const;
  await reporter.report({
    vm_id: newId('vm'),
    epoch: 1,
    observed: { kind: 'failed', reason, guest_ran: true },
  });
  assert.deepEqual(
    said.map(({ path, text }) => {
      const { execs }: Partial<ExecsReport> = JSON.parse(text);
      return [path, execs?.map(({ end }) => [end?.state, end?.exit_code])];
    }),
    [
      ['execs', [['exited', 7]]],
      ['report', undefined],
    ],
  );
});
