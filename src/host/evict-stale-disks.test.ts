import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { pathsIn } from '../config/paths.ts';
import { type InstanceId, newId } from '../shared/ids.ts';
import { createLog } from '../shared/log.ts';
import { overlayPaths, readSidecar, setAsideOverlay } from './disk/overlay-files.ts';
import { type DisksClient, evictStaleDisks } from './evict-stale-disks.ts';

const A_DAY_AGO = new Date(Date.now() - 25 * 3_600_000);
const OVERTAKEN = { known: true, continues: false };

/** A host with overlays, and what its control plane knows of their disks. */
function hostOf(t: TestContext) {
  const data = mkdtempSync(join(tmpdir(), 'bt-'));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = pathsIn(data);
  for (const folder of [paths.overlays, paths.vms]) mkdirSync(folder, { recursive: true });
  const known = new Map<InstanceId, 'deleted' | 'unknown' | { known: boolean; continues: boolean }>();
  const overlayOf = (commit_id: string, lineage: { known: boolean; continues: boolean }, at = A_DAY_AGO) => {
    const id = newId('inst');
    const { overlay, sidecar } = overlayPaths(paths.overlays, id);
    writeFileSync(overlay, '');
    const named = { generation: 3, commit_id, vm_id: newId('vm'), placement: 2, clean: true };
    writeFileSync(
      sidecar,
      JSON.stringify({ ...named, sync_failed: false, filled: 'yes', image_version: null }),
    );
    utimesSync(overlay, at, at);
    known.set(id, lineage);
    return id;
  };
  const reported: string[] = [];
  const unknown_vms = new Set<string>();
  const client: DisksClient = {
    findHead: async (id) => {
      const answer = known.get(id) ?? 'unknown';
      return typeof answer === 'string'
        ? { outcome: answer }
        : { outcome: 'head', head: { commit_id: 'head' } };
    },
    lineage: async ({ instance_id }) => {
      const answer = known.get(instance_id);
      assert(typeof answer === 'object');
      return answer;
    },
    reportUnknownVm: async ({ vm_id }) => {
      reported.push(vm_id);
      return { outcome: unknown_vms.has(vm_id) ? 'accepted' : 'ignored' };
    },
  };
  const context = { client, paths, log: createLog('test', 'silent') };
  const left = () =>
    new Set(
      [...readdirSync(paths.overlays), ...asideIn(paths.overlays)]
        .filter((name) => name !== 'aside')
        .map((name) => name.replace(/[.-].*/, '')),
    );
  return { known, overlayOf, context, left, reported, unknown_vms, overlays: paths.overlays };
}

function asideIn(overlays: string): string[] {
  return readdirSync(overlays).includes('aside') ? readdirSync(join(overlays, 'aside')) : [];
}

test('an overlay is evicted once another host has committed after it, unless it has a runner or is young', async (t) => {
  const { overlayOf, context, left } = hostOf(t);
  const removed = [overlayOf('before', OVERTAKEN), overlayOf('before', OVERTAKEN)];
  const looked_after = overlayOf('before', OVERTAKEN);
  const kept = [
    looked_after,
    overlayOf('head', OVERTAKEN),
    // Its own VM's head: it may hold more.
    overlayOf('before', { known: true, continues: true }),
    // The database has lost its disk, so it may be the only copy.
    overlayOf('lost', { known: false, continues: false }),
    overlayOf('before', OVERTAKEN, new Date()),
  ];
  await evictStaleDisks(context, (id) => id === looked_after);
  assert.deepEqual([...left()].sort(), [...kept].sort());
  assert(!removed.some((id) => left().has(id)));
});

test('the files of a deleted instance are removed; of one that the database does not know, none is', async (t) => {
  const { known, overlayOf, context, left, overlays } = hostOf(t);
  const both = [overlayOf('before', OVERTAKEN), overlayOf('before', OVERTAKEN)] as const;
  const copies = [overlayOf('before', OVERTAKEN), overlayOf('before', OVERTAKEN)] as const;
  for (const id of copies) await setAsideOverlay(overlays, id);
  for (const [deleted, unknown] of [both, copies]) {
    known.set(deleted, 'deleted');
    known.set(unknown, 'unknown');
  }
  await evictStaleDisks(context, () => false);
  assert.deepEqual([...left()].sort(), [both[1], copies[1]].sort());
});

test('of a VM that the database does not know, the control plane tells once; the overlay is kept', async (t) => {
  const { overlayOf, context, left, reported, unknown_vms, overlays } = hostOf(t);
  const ids = [
    overlayOf('lost', { known: false, continues: false }, new Date()),
    overlayOf('head', OVERTAKEN),
  ];
  const vms = await Promise.all(ids.map(async (id) => vmOf(await readSidecar(overlays, id))));
  const [unknown] = vms;
  assert(unknown);
  unknown_vms.add(unknown);
  await evictStaleDisks(context, () => false);
  assert.deepEqual(reported.toSorted(), vms.toSorted());
  await evictStaleDisks(context, () => false);
  assert.equal(reported.filter((vm) => vm === unknown).length, 1);
  assert.deepEqual(left(), new Set(ids));
});

function vmOf(sidecar: Awaited<ReturnType<typeof readSidecar>>): string {
  assert(typeof sidecar === 'object');
  return sidecar.vm_id;
}
