/** What a runner does with a VM whose QEMU dies, or is silent, at a bad moment. QEMU is a process and a monitor of ours. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { appendFile, mkdir, rm, rmdir, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import {
  type OverlaySidecar,
  overlayPaths,
  removeOverlay,
  writeSidecar,
} from '../../src/host/disk/overlay-files.ts';
import type { KeyPusher } from '../../src/host/guest/authorized-keys.ts';
import type { SecretPusher } from '../../src/host/guest/guest-secrets.ts';
import type { HostContext } from '../../src/host/host-context.ts';
import { vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { isProcessAlive } from '../../src/host/qemu/qemu-process.ts';
import { LocalVm } from '../../src/host/reconciler/local-vm.ts';
import { Reconciler } from '../../src/host/reconciler/reconciler.ts';
import { awaitGuest } from '../../src/host/vm/await-guest.ts';
import { Machine } from '../../src/host/vm/machine.ts';
import { readLoss, readRecord, type VmRecord, writeLoss } from '../../src/host/vm/record.ts';
import { cancelSuspend } from '../../src/host/vm/suspend-machine.ts';
import type { Assignment, FlushReport, MemoryRef, Report, ReportResponse } from '../../src/protocol/types.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { HEAD_ID, type LeftBehind, leftBehind, monitorOf } from '../support/fake-vm.ts';
import { headOf } from '../support/host-folders.ts';
import { only } from '../support/only.ts';
import { qcow2Head } from '../support/qcow2-head.ts';
import { until } from '../support/waiting.ts';

const sidecarOf = ({ vm_id }: VmRecord, clean: boolean): OverlaySidecar => ({
  ...{ generation: 1, commit_id: HEAD_ID, vm_id, placement: 1, clean, filled: 'yes' },
  ...{ sync_failed: false, image_version: null },
});

const MEMORY = only<MemoryRef>({ key: 'm' });

/** A runner that has it, whose overlay holds more than generation 1; and what it has said. */
async function runnerOf(
  t: TestContext,
  { root, vms, instance_id, record }: LeftBehind,
  log = createLog('test', 'silent'),
) {
  const overlays = join(root, 'overlays');
  await mkdir(overlays);
  await writeFile(overlayPaths(overlays, instance_id).overlay, qcow2Head(512));
  await writeSidecar(overlays, instance_id, sidecarOf(record, false));
  const said: Report['observed'][] = [];
  const answers: ReportResponse['outcome'][] = [];
  const flushes: FlushReport[] = [];
  const head = headOf(instance_id, { generation: 1, commit_id: HEAD_ID, epoch: 1, size_bytes: 65_536 });
  const context = only<HostContext>({
    ...{ paths: { vms, overlays }, log, vm_gid: null, cgroups: null, network: null },
    client: {
      head: async () => head,
      lineage: async () => ({ known: true, continues: true }),
      report: async ({ observed }: Report) => {
        said.push(observed);
        return { outcome: answers.shift() ?? 'accepted' };
      },
      reportFlush: async (report: FlushReport) => {
        flushes.push(report);
        return { outcome: 'accepted' };
      },
      reportLogins: async () => ({ outcome: 'accepted' }) as const,
    },
    lease: { whenHeld: async () => undefined, require: () => undefined, isHeld: true },
    images: {
      forDisk: async () => {
        throw new Error('the disk cannot be opened now');
      },
    },
  });
  const runner = new Reconciler(context, instance_id);
  const running = runner.run();
  t.after(async () => {
    runner.close();
    await running;
  });
  const wanted = only<Assignment>({
    ...{ instance_id, vm_id: record.vm_id, boot: 1, epoch: 1, desired: 'running', force: false, reboots: 0 },
    ...{
      previous_failed: false,
      guest_ran: false,
      own_since: 1,
      last_ran_epoch: 0,
      suspended: false,
      resume: null,
      user_data: false,
    },
    ...{ flush_id: null, host_key_new: false, authorized_keys: [], secrets: [] },
    spec: { slot: 1, auto_flush_seconds: null, memory_mib: 64, cpus: 1 },
  });
  return { runner, wanted, said, flushes, overlays, answers };
}

test('a VM whose QEMU dies while it is stopped is reported as stopped only after its disk is saved', async (t) => {
  const left = await leftBehind(t);
  const monitor = await monitorOf(t, left.folder, (execute) => {
    if (execute === 'query-status') return { return: { status: 'running' } };
    if (execute === 'query-jobs') return { return: [] };
    if (execute !== 'stop') return { return: {} };
    left.child.kill('SIGKILL');
    monitor.close();
    return undefined;
  });
  const { runner, wanted, said } = await runnerOf(t, left);
  runner.assign({ ...wanted, desired: 'stopped', force: true });
  const first = await until('it says something', () => said[0]);
  assert.equal(first.kind, 'flush_pending');
});

test('a dead VM without an overlay is reported as stopped with its loss', async (t) => {
  const left = await leftBehind(t);
  const { runner, wanted, said, overlays } = await runnerOf(t, left);
  const ended = once(left.child, 'exit');
  left.child.kill('SIGKILL');
  await ended;
  runner.assign({ ...wanted, desired: 'failed' });
  await removeOverlay(overlays, left.instance_id);
  runner.assign({ ...wanted, desired: 'stopped' });
  const stopped = await until('it says something', () => said[0]);
  assert(stopped.kind === 'stopped');
  assert.equal(stopped.commit_id, null);
  assert.equal(stopped.recovered?.code, 'recovered');
  assert.match(stopped.recovered.message, /generation 1\b/);
});

test('a boot whose guest ran, and of which this host knows nothing, is reported as failed and not begun again', async (t) => {
  const left = await leftBehind(t);
  left.child.kill('SIGKILL');
  await once(left.child, 'exit');
  await rm(left.folder.folder, { recursive: true });
  const { runner, wanted, said, overlays } = await runnerOf(t, left);
  await removeOverlay(overlays, left.instance_id);
  runner.assign({ ...wanted, guest_ran: true });
  const first = await until('it says something', () => said[0]);
  assert(first.kind === 'failed');
  assert.match(first.reason.message, /knows nothing of this VM/);
});

test("after a VM's death its overlay’s size counts as unsaved, until it is saved", async (t) => {
  const left = await leftBehind(t);
  const { runner, wanted, flushes, overlays } = await runnerOf(t, left);
  const { overlay } = overlayPaths(overlays, left.instance_id);
  await appendFile(overlay, Buffer.alloc(40_000, 1));
  const ended = once(left.child, 'exit');
  left.child.kill('SIGKILL');
  await ended;
  runner.assign({ ...wanted, desired: 'failed' });
  const dirty = await until('it is known', () => runner.dirtyBytes());
  assert(dirty >= 40_000, `${dirty} bytes`);
  await writeSidecar(overlays, left.instance_id, sidecarOf(left.record, true));
  runner.assign({ ...wanted, desired: 'failed', vm_id: newId('vm'), flush_id: newId('flush') });
  await until('a flush finds nothing', () => flushes.some(({ state }) => state === 'done'));
  assert.equal(await runner.dirtyBytes(), 0);
});

test("a loss that an earlier agent did not report is reported with the VM's end, and a flush of a saved disk names the head", async (t) => {
  const reason = { code: 'recovered', message: 'What it had in memory is lost.' } as const;
  const cases = [
    { own_since: 1, set_aside: false, is_said: true },
    // Another host has had the disk since, and has reported it, unless it is known to this host alone.
    { own_since: 2, set_aside: false, is_said: false },
    { own_since: 2, set_aside: true, is_said: true },
  ];
  for (const { own_since, set_aside, is_said } of cases) {
    const left = await leftBehind(t);
    await writeLoss(left.folder, { reason, epoch: 1, set_aside });
    const ended = once(left.child, 'exit');
    left.child.kill('SIGKILL');
    await ended;
    const { runner, said, flushes, overlays, ...rest } = await runnerOf(t, left);
    const wanted =
      own_since === 1 ? rest.wanted : { ...rest.wanted, vm_id: newId('vm'), epoch: 3, own_since };
    await writeSidecar(overlays, left.instance_id, sidecarOf(left.record, true));
    runner.assign({ ...wanted, desired: 'failed', flush_id: newId('flush') });
    const flush = await until('the flush ends', () => flushes.find((each) => each.state !== 'running'));
    assert(flush.state === 'done');
    assert.equal(flush.result.commit_id, HEAD_ID);
    runner.assign({ ...wanted, desired: 'stopped' });
    const stopped = await until('it says something', () => said[0]);
    const recovered = is_said ? { recovered: reason } : {};
    assert.deepEqual(stopped, { kind: 'stopped', commit_id: HEAD_ID, ...recovered });
    await until('it is not said again', async () => (await readLoss(left.folder)) === null);
  }
});

test('a stop names no commit where the files of the host vanished while it was under way or pending', async (t) => {
  const left = await leftBehind(t);
  left.child.kill('SIGKILL');
  await once(left.child, 'exit');
  await rm(left.folder.folder, { recursive: true });
  const { runner, wanted, said, flushes, overlays, answers } = await runnerOf(t, left);
  await removeOverlay(overlays, left.instance_id);
  answers.push('unwanted');
  const stopping = { ...wanted, desired: 'stopped', guest_ran: true, last_ran_epoch: 1 } as const;
  runner.assign(stopping);
  const first = await until('it says something', () => said[0]);
  assert(first.kind === 'stopped');
  assert.deepEqual([first.commit_id, first.recovered?.code], [null, 'recovered']);
  // The control plane has failed it, and a flush is not answered with the head.
  const failed = { ...stopping, desired: 'failed', previous_failed: true } as const;
  runner.assign({ ...failed, flush_id: newId('flush') });
  const flush = await until('the flush ends', () => flushes.find((each) => each.state !== 'running'));
  assert.deepEqual([flush.state, flush.state === 'failed' && flush.error.code], ['failed', 'vm_gone']);
  // Another stop ends it.
  runner.assign({ ...failed, desired: 'stopped' });
  await until('it says it again', () => said.length === 2);
});

test('a stop names no commit where the files of the host are of a time before its guest ran', async (t) => {
  const left = await leftBehind(t);
  left.child.kill('SIGKILL');
  await once(left.child, 'exit');
  const { runner, wanted, said, overlays } = await runnerOf(t, left);
  await rm(left.folder.folder, { recursive: true });
  await writeSidecar(overlays, left.instance_id, sidecarOf(left.record, true));
  const later = { vm_id: newId('vm'), boot: 2, epoch: 2, guest_ran: true, last_ran_epoch: 2 };
  runner.assign({ ...wanted, ...later, desired: 'stopped' });
  const first = await until('it says something', () => said[0]);
  assert(first.kind === 'stopped');
  assert.equal(first.commit_id, null);
});

test('a loss stays to be told while a report of it does not count', async (t) => {
  const left = await leftBehind(t);
  left.child.kill('SIGKILL');
  await once(left.child, 'exit');
  const reason = { code: 'recovered', message: 'Something is lost.' } as const;
  await writeLoss(left.folder, { reason, epoch: 1, set_aside: true });
  const { runner, wanted, said, overlays, answers } = await runnerOf(t, left);
  await writeSidecar(overlays, left.instance_id, sidecarOf(left.record, true));
  answers.push('unwanted');
  runner.assign({ ...wanted, desired: 'stopped' });
  await until('it is said', () => said.length === 1);
  assert.deepEqual((await readLoss(left.folder))?.reason, reason);
  runner.assign({ ...wanted, desired: 'failed' });
  runner.assign({ ...wanted, desired: 'stopped' });
  await until('it is said again', () => said.length === 2);
  await until('it counted', async () => (await readLoss(left.folder)) === null);
});

test('an adopted VM whose guest agent does not answer is not ended, and is flushed on request', async (t) => {
  const left = await leftBehind(t);
  await monitorOf(t, left.folder, (execute) => {
    if (execute === 'query-status') return { return: { status: 'running' } };
    return execute === 'query-jobs' ? { return: [] } : { return: {} };
  });
  let tries = 0;
  const counting = createLog('test', 'warn', {
    write: (line) => {
      if (line.includes('await_guest')) tries += 1;
    },
  });
  const { runner, wanted, said, flushes } = await runnerOf(t, left, counting);
  runner.assign(wanted);
  await until('it is waited for again', () => tries > 1 || said.length > 0);
  runner.assign({ ...wanted, flush_id: newId('flush') });
  await until('the flush has begun', () => flushes.some(({ state }) => state === 'running'));
  assert.deepEqual(said, []);
  assert(isProcessAlive(left.record.identity));
});

test('each reset of a guest is reported, also a second one before its agent answers', async (t) => {
  const left = await leftBehind(t);
  let adopted = false;
  const monitor = await monitorOf(t, left.folder, (execute) => {
    if (execute === 'query-jobs') adopted = true;
    if (execute === 'query-jobs') return { return: [] };
    return { return: execute === 'query-status' ? { status: 'running' } : {} };
  });
  const silent = createServer((socket) => socket.on('error', () => undefined));
  silent.listen(vmSockets(left.folder.runtime).agent);
  t.after(() => silent.close());
  await once(silent, 'listening');
  const { runner, wanted, said } = await runnerOf(t, left);
  runner.assign(wanted);
  const [client] = await until('it is adopted', () => adopted && [...monitor.clients]);
  for (let resets = 1; resets <= 3; resets++) {
    const timestamp = { seconds: 0, microseconds: 0 };
    client?.write(`${JSON.stringify({ event: 'RESET', data: { guest: true, reason: 'x' }, timestamp })}\r\n`);
    await until(`reset ${resets} is said`, () => said.length >= resets);
  }
  assert.deepEqual(new Set(said.map(({ kind }) => kind)), new Set(['rebooting']));
});

test('a VM whose guest agent answers nonsense is reported as such, is flushed on request, and is not ended', async (t) => {
  const left = await leftBehind(t);
  await monitorOf(t, left.folder, (execute) => {
    if (execute === 'query-status') return { return: { status: 'running' } };
    return execute === 'query-jobs' ? { return: [] } : { return: {} };
  });
  const hostile = createServer((socket) => {
    socket.on('error', () => undefined).write('['.repeat(1_000_000));
  }).listen(vmSockets(left.folder.runtime).agent);
  t.after(() => hostile.close());
  await once(hostile, 'listening');
  const { runner, wanted, said, flushes } = await runnerOf(t, left);
  runner.assign(wanted);
  const first = await until('it is said', () => said[0]);
  assert.deepEqual(
    [first.kind, first.kind === 'stalled' && first.reason.code],
    ['stalled', 'guest_agent_silent'],
  );
  runner.assign({ ...wanted, flush_id: newId('flush') });
  await until('the flush has begun', () => flushes.some(({ state }) => state === 'running'));
  assert(isProcessAlive(left.record.identity));
  assert.equal(said.length, 1);
});

test('a launch that ended with its agent is repeated, does not count as a failed boot, and keeps its reason for a cold boot and the name of its consumption', async (t) => {
  const cold = { code: 'cold_boot', message: 'its memory is of another machine' } as const;
  const cases = [
    { change: { released: false, resuming: true }, launched: false, kept: null },
    { change: { template: { key: 'k', awake: false } }, launched: false, kept: null },
    { change: { released: false, resuming: true, consumer: 'it' }, launched: false, kept: undefined },
    { change: { released: false, cold }, launched: false, kept: cold },
    { change: { resuming: true }, launched: true, kept: undefined },
  ];
  for (const { change, launched, kept } of cases) {
    const { child, folder, instance_id, record, vms } = await leftBehind(t, change);
    child.kill('SIGKILL');
    await until('it has ended', () => !isProcessAlive(record.identity));
    const log = createLog('test', 'silent');
    const context = only<HostContext>({ paths: { vms }, log, vm_gid: null, network: null });
    const held = new LocalVm(context, instance_id, folder, () => undefined);
    await held.adopt((work) => work());
    assert.equal(held.wasLaunched(record.vm_id), launched, JSON.stringify(change));
    const found = await readRecord(folder);
    assert.deepEqual(found === null ? null : found.cold, kept);
  }
});

test('a VM that is halted while it waits for its disk is not resumed', async (t) => {
  const { folder, record } = await leftBehind(t);
  let status = 'running';
  const asked: string[] = [];
  await monitorOf(t, folder, (execute) => {
    asked.push(execute);
    return execute === 'query-status' ? { return: { status } } : { return: {} };
  });
  const log = createLog('test', 'silent');
  const machine = await Machine.adopt({
    folder,
    record,
    log,
    changed: () => undefined,
    lazy: null,
    owner: null,
    guest_network: null,
  });
  assert(machine);
  t.after(() => machine.release());
  status = 'io-error';
  await Promise.all([machine.resumeIfStalled(), machine.halt()]);
  await machine.resumeIfStalled();
  assert(asked.includes('stop') && !asked.includes('cont'), asked.join());
});

test('a guest with durable memory is resumed only after its record dropped the memory', async (t) => {
  const { folder, record } = await leftBehind(t, { suspending: true, memory: MEMORY });
  const asked: string[] = [];
  await monitorOf(t, folder, (execute) => {
    asked.push(execute);
    if (execute === 'query-status') return { return: { status: 'postmigrate' } };
    return { return: execute === 'query-migrate' ? { status: 'completed' } : {} };
  });
  const log = createLog('test', 'silent');
  const machine = await Machine.adopt({
    folder,
    record,
    log,
    changed: () => undefined,
    lazy: null,
    owner: null,
    guest_network: null,
  });
  assert(machine);
  t.after(() => machine.release());
  // In the way of what is written.
  await mkdir(`${folder.record}.tmp`);
  for (const _ of ['the first try', 'the second'])
    await assert.rejects(cancelSuspend(machine), { code: 'EISDIR' });
  assert(!asked.includes('cont'));
  await rmdir(`${folder.record}.tmp`);
  await cancelSuspend(machine);
  assert(asked.includes('cont'));
  assert.equal((await readRecord(folder))?.memory, null);
});

test('the overlay of a guest that runs on despite its durable memory is filled again, once', async (t) => {
  const base_path = '/dev/null';
  const suspended = { suspending: true, memory: MEMORY };
  const left = await leftBehind(t, { ...suspended, lazy: { size_bytes: 65_536, base_path } });
  const asked: string[] = [];
  const fillings = () => asked.filter((each) => each === 'nbd-server-start').length;
  await monitorOf(t, left.folder, (execute) => {
    asked.push(execute);
    if (execute === 'query-status') return { return: { status: 'postmigrate' } };
    if (execute === 'query-migrate') return { return: { status: 'completed' } };
    // The second filling goes no further.
    return fillings() > 1 && execute === 'nbd-server-start' ? undefined : { return: {} };
  });
  const head = headOf(left.instance_id, { generation: 1, commit_id: HEAD_ID, epoch: 1, size_bytes: 65_536 });
  const context = only<HostContext>({
    ...{ paths: { vms: left.vms }, log: createLog('test', 'silent'), vm_gid: null, network: null },
    ...{ client: { head: async () => head }, runs: { fetched: { requests: 0, bytes: 0 } } },
  });
  const held = new LocalVm(context, left.instance_id, left.folder, () => undefined);
  t.after(() => held.release());
  await held.adopt((work) => work());
  assert.equal(fillings(), 0, 'not while it may have to end');
  await held.cancelSuspend();
  await until('it is filled', () => fillings() === 1);
  assert(asked.indexOf('cont') < asked.indexOf('nbd-server-start'), asked.join());
  const { running } = held;
  await running.lazy?.stopFilling();
  await running.update(suspended);
  await held.cancelSuspend();
  await until('it is filled again', () => fillings() === 2);
  asked.length = 0;
  await held.cancelSuspend();
  await running.qmp.execute('query-status', undefined);
  assert(asked.includes('cont') && !asked.includes('nbd-server-stop'), asked.join());
});

test('a guest that was reset during a freeze is thawed when it comes up', async (t) => {
  const { folder, record } = await leftBehind(t);
  await monitorOf(t, folder, (execute) =>
    execute === 'query-status' ? { return: { status: 'running' } } : { return: {} },
  );
  const agent = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.on('data', (data) => {
      for (const line of String(data).split('\n')) {
        const { execute, arguments: args } = JSON.parse(line.slice(line.indexOf('{')) || '{}');
        if (execute === 'guest-sync-delimited')
          socket.write(Buffer.concat([Buffer.of(0xff), Buffer.from(`{"return":${args.id}}\n`)]));
        if (execute === 'guest-ping') socket.write('{"return":{}}\n');
        if (execute === 'guest-fsfreeze-thaw') socket.write('{"return":1}\n');
        // And of a freeze nothing is heard.
      }
    });
  }).listen(vmSockets(folder.runtime).agent);
  t.after(() => agent.close());
  await once(agent, 'listening');
  const log = createLog('test', 'silent');
  const machine = await Machine.adopt({
    folder,
    record,
    log,
    changed: () => undefined,
    lazy: null,
    owner: null,
    guest_network: null,
  });
  assert(machine);
  t.after(() => machine.release());
  // In step before: else the time may be over before the freeze is sent.
  await machine.agent.ping();
  await assert.rejects(machine.agent.fsfreeze(50));
  assert(machine.agent.maybe_frozen);
  const given_up = new AbortController();
  const keys = only<KeyPusher>({ apply: async () => assert.fail('not here') });
  const secrets = only<SecretPusher>({ apply: async () => undefined });
  const awaited = awaitGuest(
    machine,
    { keys, secrets },
    { signal: given_up.signal, patience: given_up.signal },
  );
  await until('it is thawed', () => !machine.agent.maybe_frozen);
  given_up.abort(new Error('enough'));
  await assert.rejects(awaited);
});
