/** A suspend while the control plane does not answer. QEMU is real and has no guest; its disk and its monitor are as a VM's. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { DIRTY_BITMAP, DIRTY_GRANULARITY } from '../../src/host/disk/dirty-blocks.ts';
import { DiskState, FencedError } from '../../src/host/disk/disk-state.ts';
import { NODES, vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { identityOfProcess } from '../../src/host/qemu/qemu-process.ts';
import { Machine } from '../../src/host/vm/machine.ts';
import { makeVmFolder, readRecord, type VmRecord, vmFolder, writeRecord } from '../../src/host/vm/record.ts';
import { suspendMachine } from '../../src/host/vm/suspend-machine.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { ControlPlaneUnavailable } from '../../src/protocol/client.ts';
import type { CommitResponse, DataKey } from '../../src/protocol/types.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { until } from '../support/waiting.ts';

const DISK_BYTES = 64 * 2 ** 20;
const log = createLog('test', 'silent');
const keyOf = (use: DataKey['use']): DataKey => ({
  ...{ key_id: `dk_${randomBytes(16).toString('hex')}`, key: randomBytes(32).toString('base64'), use },
});

/** A running machine with one unsaved block, and a control plane that answers as `answers` says. */
async function scene(t: TestContext) {
  const root = await mkdtemp(join(tmpdir(), 'bsus-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const [instance_id, vm_id] = [newId('inst'), newId('vm')];
  const folder = vmFolder(join(root, 'vms'), instance_id);
  const overlays = join(root, 'overlays');
  await mkdir(overlays);
  await mkdir(join(root, 'vms'));
  await makeVmFolder(folder);
  await mkdir(folder.runtime);
  const overlay = join(overlays, 'overlay.qcow2');
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', overlay, String(DISK_BYTES)]);
  const nodes = [
    { driver: 'file', 'node-name': NODES.overlay_file, filename: overlay },
    { driver: 'qcow2', 'node-name': NODES.overlay, file: NODES.overlay_file },
  ];
  const qemu = spawn(
    'qemu-system-x86_64',
    [
      ...['-M', 'none', '-nodefaults', '-display', 'none', '-S'],
      ...['-chardev', `socket,id=qmp,path=${vmSockets(folder.runtime).qmp},server=on,wait=off`],
      ...['-mon', 'chardev=qmp,mode=control'],
      ...nodes.flatMap((node) => ['-blockdev', JSON.stringify(node)]),
    ],
    { stdio: 'ignore' },
  );
  t.after(async () => {
    const ended = once(qemu, 'exit');
    if (qemu.kill('SIGKILL')) await ended;
  });
  await until('QEMU listens', () => existsSync(vmSockets(folder.runtime).qmp));
  const head = {
    ...{ instance_id, size_bytes: DISK_BYTES, image_version: null, generation: 0, commit_id: randomUUID() },
    ...{ epoch: 1, durable_at: null, layers: [], keys: [], encryption: false, boot_order: [] },
  };
  const record: VmRecord = {
    ...{ instance_id, vm_id, boot: 1, epoch: 1, image: 'debian-12', image_version: 'a'.repeat(64) },
    ...{ network: { kind: 'user', ssh_forward_port: 1 } },
    identity: await until('QEMU runs', () => identityOfProcess(qemu.pid ?? 0)),
    ...{ released: true, ran: true, full_compare: false, counts_from: head.commit_id, frozen: false },
    ...{ lazy: null, reboots_done: 0, flush: null },
  };
  await writeRecord(folder, record);
  const machine = await Machine.adopt({
    ...{ folder, record, log, lazy: null, owner: null, guest_network: null },
    changed: () => undefined,
  });
  assert(machine);
  t.after(() => machine.release());
  const { qmp } = machine;
  await qmp.execute('block-dirty-bitmap-add', {
    ...{ node: NODES.overlay, name: DIRTY_BITMAP, granularity: DIRTY_GRANULARITY, persistent: false },
  });
  await qmp.execute('human-monitor-command', {
    'command-line': `qemu-io ${NODES.overlay} "write -P 7 0 64k"`,
  });
  const asked = { keys: 0, commits: 0 };
  const answers: { keys: boolean; commit: CommitResponse | null } = { keys: true, commit: null };
  const pool = new CompressPool();
  t.after(() => pool.close());
  const keys = [keyOf('disk'), keyOf('memory')];
  const store = await FolderStore.open(join(root, 'store'));
  const context = {
    ...{ log, pool, store, accel: 'tcg' as const, paths: { overlays } },
    images: { stored: async () => undefined },
    lease: { require: () => undefined },
    client: {
      head: async () => head,
      lineage: async () => ({ known: true, continues: true }),
      dataKeys: async () => {
        asked.keys += 1;
        if (!answers.keys) throw new ControlPlaneUnavailable('away');
        return { outcome: 'keys' as const, keys, encryption: true };
      },
      commit: async () => {
        asked.commits += 1;
        if (answers.commit === null) throw new ControlPlaneUnavailable('away');
        return answers.commit;
      },
    },
  };
  const disk = new DiskState(context, instance_id);
  const [wanted, deadline, closing] = [new AbortController(), new AbortController(), new AbortController()];
  t.after(() => closing.abort());
  const suspending = () =>
    suspendMachine({
      ...{ context, machine, disk, owner: null, spec: { cpus: 1, memory_mib: 64 } },
      ...{ signal: wanted.signal, deadline: deadline.signal, closing: closing.signal },
    });
  const statusOf = async () => (await qmp.execute('query-status', undefined)).status;
  await until('it runs', async () => (await statusOf()) === 'running');
  const memories = async () => {
    const found: string[] = [];
    for await (const { key } of store.list(`disks/${instance_id}/mem/`)) found.push(key);
    return found;
  };
  return { folder, disk, asked, answers, deadline, suspending, statusOf, memories };
}

const COMMITTED: CommitResponse = { outcome: 'committed', durable_at: '2026-01-02T03:04:05.678Z' };

// At once: each waits ten seconds for a guest agent to confirm its thaw.
describe('a suspend without an answer of the control plane', { concurrency: true }, () => {
  test('a guest runs on while a suspend waits for the keys of a control plane that is away', async (t) => {
    const { asked, answers, deadline, suspending, statusOf } = await scene(t);
    answers.keys = false;
    const suspended = assert.rejects(suspending());
    await until('it has asked again', () => asked.keys > 2);
    assert.equal(await statusOf(), 'running');
    deadline.abort(new Error('late'));
    await suspended;
    assert.equal(await statusOf(), 'running');
  });

  test('at the deadline a guest continues while the outcome of a commit is awaited, and no memory is saved after it', async (t) => {
    const { folder, disk, asked, answers, deadline, suspending, statusOf, memories } = await scene(t);
    let over = false;
    const suspended = assert.rejects(suspending(), /late/).finally(() => {
      over = true;
    });
    await until('the commit was sent', () => asked.commits > 0);
    assert.equal(await statusOf(), 'paused');
    deadline.abort(new Error('late'));
    await until('the guest continues', async () => (await statusOf()) === 'running');
    const { commits } = asked;
    await until('the outcome is asked for again', () => asked.commits > commits);
    assert.equal(over, false);
    answers.commit = COMMITTED;
    await suspended;
    assert.equal(disk.head.generation, 1, 'the next flush counts from it');
    const found = await readRecord(folder);
    assert.deepEqual([found?.suspending, found?.memory ?? null, await memories()], [false, null, []]);
  });

  test('a commit whose outcome after the deadline is that another placement has the disk ends the machine', async (t) => {
    const { asked, answers, deadline, suspending } = await scene(t);
    const suspended = assert.rejects(suspending(), FencedError);
    await until('the commit was sent', () => asked.commits > 0);
    deadline.abort(new Error('late'));
    answers.commit = { outcome: 'fenced', why: 'another placement has it' };
    await suspended;
  });
});
