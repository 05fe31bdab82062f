/** A host that knows two control planes keeps its lease when one is killed, and when one hangs. With the real fencer. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathsIn } from '../../src/config/paths.ts';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { runningFencer, startFencer } from '../../src/host/lease/fencer.ts';
import { HostLease } from '../../src/host/lease/host-lease.ts';
import { killProcess } from '../../src/host/qemu/qemu-process.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import type { HostId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile } from '../support/api.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { ToxicProxy } from '../support/toxic-proxy.ts';
import { until } from '../support/waiting.ts';

const LEASE_MS = 12_000;
const RENEWALS = 2;
const api = await apiForFile({ host_lease_ms: LEASE_MS });
const paths = pathsIn(mkdtempSync(join(tmpdir(), 'bt-')));
const ending = new AbortController();
let ways: readonly [ToxicProxy, ToxicProxy];
let client: ControlPlaneClient;
let lease: HostLease;
let running: Promise<void>;
let id: HostId;

before(async () => {
  for (const folder of [paths.run, paths.vms, paths.logs]) await mkdir(folder);
  const port = Number(new URL(api.internal_origin).port);
  ways = [await ToxicProxy.open(port), await ToxicProxy.open(port)];
  const token = randomBytes(32).toString('hex');
  id = await ensureHost(api.db, 'b', hashToken(token));
  const others = [{ url: ways[1].endpoint, fingerprint: undefined }];
  client = new ControlPlaneClient({ address: ways[0].endpoint, token, known: others });
  await client.heartbeat({ facts: FACTS, disks: [] });
  const fence = () => startFencer(paths, 'info');
  lease = new HostLease({ client, paths, log: createLog('test', 'silent'), startFencer: fence });
  running = lease.run(ending.signal);
  await renewed();
});
after(async () => {
  ending.abort();
  await running;
  await client.close();
  for (const way of ways) await way.cut();
  const fencer = runningFencer(paths);
  if (fencer) killProcess(fencer, 'SIGKILL');
  rmSync(paths.data, { recursive: true, force: true });
});

/** Waits for some renewals of a lease, which is held all the time. */
async function renewed(): Promise<void> {
  const beat = async () =>
    (await api.db.selectFrom('hosts').select(['beat', 'lease_ms']).where('id', '=', id).executeTakeFirst()) ??
    assert.fail('the host');
  const from = (await beat()).beat;
  await until('the lease is renewed', async () => {
    assert(lease.isHeld);
    assert(!existsSync(paths.fenced), 'no VM was paused');
    const now = await beat();
    return now.lease_ms === LEASE_MS && now.beat >= from + RENEWALS;
  });
}

test('one control plane is killed, then comes back while the other is killed', async () => {
  await ways[0].cut();
  await renewed();
  await ways[0].mend();
  await ways[1].cut();
  await renewed();
  await ways[1].mend();
});

test('one control plane takes connections and answers nothing, and then the other', async () => {
  for (const way of ways) {
    way.poison(() => ({ hang: true }));
    await renewed();
    way.heal();
  }
});

test('a poll that the hanging one holds ends, so that the host hears of its assignments from the other', async () => {
  // The client uses the first again.
  const [first, other] = ways;
  const { etag } = await client.poll({ seen: null }, ending.signal);
  other.poison(() => undefined);
  first.poison(() => ({ hang: true }));
  const enough = new AbortController();
  const polls = (async () => {
    while (!enough.signal.aborted) await client.poll({ seen: etag }, enough.signal).catch(() => null);
  })();
  await until('it polls at the other', () => other.seen.some(({ path }) => path.endsWith('/poll')));
  enough.abort();
  await polls;
  first.heal();
});
