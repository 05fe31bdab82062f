/** A host without credentials for the bucket, and a database that has lost its last commit. QEMU is scripted. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { DiskState, HeadMovedError } from '../../src/host/disk/disk-state.ts';
import { type FlushContext, flushMachine } from '../../src/host/disk/flush-disk.ts';
import { NbdClient } from '../../src/host/disk/nbd-client.ts';
import { permittedStore } from '../../src/host/host-store.ts';
import type { Machine } from '../../src/host/vm/machine.ts';
import type { VmRecord } from '../../src/host/vm/record.ts';
import { S3Store } from '../../src/object-store/s3-store.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile } from '../support/api.ts';
import { only } from '../support/only.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { S3Server } from '../support/s3-server.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { scriptedQmp } from '../support/scripted-qmp.ts';

const BLOCK_BYTES = 65_536;
const api = await apiForFile();
const { db } = api;
const server = await S3Server.start();
const bucket = new S3Store(await server.bucket());
const far = await listenToRemoteHosts(api, { sign: (wanted) => bucket.sign(wanted) });
const { agent } = await far.join('rack', { cpus: '64', memory: '4096' });
await agent.connect({ ...FACTS, memory_mib: 4 * FACTS.memory_mib });
await db.updateTable('hosts').set({ cordoned: true }).where('name', '=', 'local').execute();
const store = permittedStore(agent.client, createLog('test', 'silent'));
const pool = new CompressPool();
after(async () => {
  await pool.close();
  bucket.close();
  await server.close();
});

/** A machine whose guest writes blocks of 64 KiB, as QEMU's monitor shows it. */
function scriptedMachine(runtime: string, record: Partial<VmRecord>) {
  let job: { id: string; status: string } | null = null;
  // What the overlay holds: every block that the guest ever wrote, and those that the bitmap marks.
  const all = new Map<number, Buffer>();
  const marked = new Set<number>();
  const backUp = async ({
    'job-id': id = '',
    sync,
  }: {
    readonly 'job-id'?: string;
    readonly sync?: string;
  }) => {
    const { signal } = new AbortController();
    const path = join(runtime, 'flush.sock');
    const target = await NbdClient.connect({ path, export_name: 'flush', signal });
    job = { id, status: 'running' };
    for (const block of sync === 'top' ? all.keys() : marked)
      await target.write(block * BLOCK_BYTES, all.get(block) ?? assert.fail());
    await target.disconnect();
    job.status = 'pending';
  };
  const reply = async (command: string, args: unknown) => {
    if (command === 'transaction') {
      const { actions } = args as { readonly actions: readonly { readonly data: { 'job-id'?: string } }[] };
      await backUp(actions.find(({ data }) => data['job-id'])?.data ?? assert.fail());
    }
    if (command === 'job-finalize' && job) marked.clear();
    if ((command === 'job-finalize' || command === 'job-cancel') && job) job.status = 'concluded';
    if (command === 'job-dismiss') job = null;
    return command === 'query-jobs' && job ? [job] : [];
  };
  const qmp = scriptedQmp(reply, { waitForEvent: () => new Promise<never>(() => undefined) });
  const machine = only<Machine>({
    ...{ folder: { runtime }, qmp, record },
    ...{ gone: false, broken: false, exported: { syncToDisk: async () => undefined } },
    disk: { sizeBytes: async () => 2 ** 30, noteBegun: () => undefined, noteFlushed: async () => undefined },
    markedBytes: async () => (record.full_compare === true ? null : marked.size * BLOCK_BYTES),
    update: async (change: object) => void Object.assign(record, change),
    resumeIfStalled: async () => undefined,
  });
  const write = (block: number) => {
    all.set(block, randomBytes(BLOCK_BYTES));
    marked.add(block);
  };
  return { machine, write };
}

async function running() {
  const owner = await api.person();
  const { id } = await api.instance(owner, { disk_gib: 1 });
  assert.equal((await api.as(owner).post(`/v1/instances/${id}/vm`)).status, 202);
  const { vm_id, epoch } = await agent.assigned(id);
  await agent.ready(id);
  const runtime = await mkdtemp(join(tmpdir(), 'bt-'));
  after(() => rm(runtime, { recursive: true, force: true }));
  const context = only<FlushContext>({
    ...{ client: agent.client, store, pool, log: createLog('test', 'silent'), paths: { overlays: runtime } },
    ...{ images: { stored: async () => undefined }, lease: { require: () => undefined } },
  });
  const disk = new DiskState(context, id);
  const { commit_id } = await disk.refresh();
  const { machine, write } = scriptedMachine(runtime, {
    ...{ instance_id: id, vm_id, epoch, image: 'debian-12', image_version: 'a'.repeat(64) },
    ...{ counts_from: commit_id, full_compare: false, frozen: false, flush: null },
  });
  const { signal } = new AbortController();
  const options = { context, machine, disk, owner: null, quiesce: 'crash', signal } as const;
  // As LocalVm does it.
  const flush = () =>
    flushMachine(options).catch((error: unknown) => {
      if (error instanceof HeadMovedError) return flushMachine(options);
      throw error;
    });
  return { id, flush, write };
}

test('the database has lost a commit in a failover: the next flush commits everything again', async () => {
  const { id, flush, write } = await running();
  const headOf = () =>
    db
      .selectFrom('disks')
      .select(['generation', 'commit_id'])
      .where('instance_id', '=', id)
      .executeTakeFirstOrThrow();
  write(1);
  await flush();
  const before = await headOf();
  assert.equal(before.generation, 1);
  write(2);
  const { commit_id } = await flush();
  assert.deepEqual(await headOf(), { generation: 2, commit_id }, 'a receipt');
  // The new leader does not have that transaction.
  await db.deleteFrom('generations').where('instance_id', '=', id).where('generation', '=', 2).execute();
  await db.updateTable('disks').set(before).where('instance_id', '=', id).execute();
  write(3);
  const again = await flush();
  assert.equal(again.dirty_bytes, 3 * BLOCK_BYTES);
  assert.deepEqual(await headOf(), { generation: 2, commit_id: again.commit_id });
});
