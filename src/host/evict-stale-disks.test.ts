import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { ControlPlaneClient } from '../agent-api/client.ts';
import { pathsIn } from '../config/paths.ts';
import { type InstanceId, newId } from '../lib/ids.ts';
import { createLog } from '../lib/log.ts';
import { evictStaleDisks } from './evict-stale-disks.ts';
import { overlayPaths } from './vm/overlay.ts';

test('an overlay is evicted once another host has committed after it, unless it has a runner or is young', async (t) => {
  const data = mkdtempSync(join(tmpdir(), 'bt-'));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = pathsIn(data);
  for (const folder of [paths.overlays, paths.vms]) mkdirSync(folder, { recursive: true });
  const heads = new Map<InstanceId, { commit_id: string; known: boolean; continues: boolean }>();
  const a_day_ago = new Date(Date.now() - 25 * 3_600_000);
  const overlayOf = (commit_id: string, lineage: { known: boolean; continues: boolean }, at = a_day_ago) => {
    const id = newId('inst');
    const { overlay, sidecar } = overlayPaths(paths.overlays, id);
    writeFileSync(overlay, '');
    const named = { generation: 3, commit_id, vm_id: newId('vm'), placement: 2 };
    writeFileSync(sidecar, JSON.stringify({ ...named, clean: true, filled: 'yes', image_version: null }));
    utimesSync(overlay, at, at);
    heads.set(id, { commit_id: 'head', ...lineage });
    return id;
  };
  const overtaken = { known: true, continues: false };
  const removed = [overlayOf('before', overtaken), overlayOf('before', overtaken)];
  const looked_after = overlayOf('before', overtaken);
  const kept = [
    looked_after,
    overlayOf('head', overtaken),
    // Its own VM's head: it may hold more.
    overlayOf('before', { known: true, continues: true }),
    // The database has lost its disk, so it may be the only copy.
    overlayOf('lost', { known: false, continues: false }),
    overlayOf('before', overtaken, new Date()),
  ];
  const client = {
    head: async (id: InstanceId) => heads.get(id) ?? null,
    lineage: async ({ instance_id }: { instance_id: InstanceId }) => heads.get(instance_id),
  } as unknown as ControlPlaneClient;
  await evictStaleDisks({ client, paths, log: createLog('test', 'silent') }, (id) => id === looked_after);
  const left = new Set(readdirSync(paths.overlays).map((name) => name.replace(/\..*/, '')));
  assert.deepEqual([...left].sort(), [...kept].sort());
  assert.equal(left.size, heads.size - removed.length);
});
