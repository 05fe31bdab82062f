import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { ControlPlaneClient } from '../agent-api/client.ts';
import { pathsIn } from '../config/paths.ts';
import { type InstanceId, newId } from '../lib/ids.ts';
import { createLog } from '../lib/log.ts';
import { removeForgotten } from './forgotten.ts';
import { overlayPaths } from './vm/overlay.ts';

test('an overlay goes once another host has committed after it, unless a runner or the horizon keeps it', async (t) => {
  const data = mkdtempSync(join(tmpdir(), 'bt-'));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = pathsIn(data);
  for (const folder of [paths.overlays, paths.vms]) mkdirSync(folder, { recursive: true });
  const heads = new Map<InstanceId, { generation: number; head_epoch: number }>();
  const a_day_ago = new Date(Date.now() - 25 * 3_600_000);
  const overlayOf = (head: { generation: number; head_epoch: number }, clean = false, at = a_day_ago) => {
    const id = newId('inst');
    const { overlay, sidecar } = overlayPaths(paths.overlays, id);
    writeFileSync(overlay, '');
    writeFileSync(sidecar, JSON.stringify({ generation: 3, epoch: 2, placement: 2, clean, filled: true }));
    utimesSync(overlay, at, at);
    heads.set(id, head);
    return id;
  };
  const overtaken = [
    overlayOf({ generation: 5, head_epoch: 4 }),
    overlayOf({ generation: 4, head_epoch: 3 }, true),
  ];
  const looked_after = overlayOf({ generation: 5, head_epoch: 4 });
  const kept = [
    looked_after,
    overlayOf({ generation: 3, head_epoch: 2 }, true),
    // Its own commit, after which the sidecar was not written: it may hold more.
    overlayOf({ generation: 4, head_epoch: 2 }),
    overlayOf({ generation: 5, head_epoch: 4 }, false, new Date()),
  ];
  const client = {
    head: async (id: InstanceId) => heads.get(id) ?? null,
  } as unknown as ControlPlaneClient;
  await removeForgotten({ client, paths, log: createLog('test', 'silent') }, (id) => id === looked_after);
  const left = new Set(readdirSync(paths.overlays).map((name) => name.replace(/\..*/, '')));
  assert.deepEqual([...left].sort(), [...kept].sort());
  assert.equal(left.size, heads.size - overtaken.length);
});
