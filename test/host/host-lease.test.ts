import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { pathsIn } from '../../src/config/paths.ts';
import { leftMs, readLease, writeLease } from '../../src/host/lease/fencer.ts';
import { HostLease } from '../../src/host/lease/host-lease.ts';
import { bootMs, identityOfProcess } from '../../src/host/qemu/qemu-process.ts';
import {
  type ControlPlaneClient,
  ControlPlaneUnavailable,
  CredentialRefused,
} from '../../src/protocol/client.ts';
import { DEFAULT_LEASE_MS } from '../../src/protocol/types.ts';
import { logLines } from '../support/log-lines.ts';
import { only } from '../support/only.ts';
import { until } from '../support/waiting.ts';

/** A folder of its own, the lines of a log, and a control plane that `isAway` for some renewals, counted from 1. */
function scene(t: TestContext, isAway: (renewal: number) => boolean) {
  const data = mkdtempSync(join(tmpdir(), 'bt-'));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = pathsIn(data);
  const { log, lines } = logLines();
  const count = { renewals: 0 };
  const client = only<ControlPlaneClient>({
    control_planes: 1,
    renewLease: async () => {
      count.renewals += 1;
      if (isAway(count.renewals)) throw new ControlPlaneUnavailable('it is away');
      return { lease_ms: 3_000 };
    },
  });
  const lease = new HostLease({ client, paths, log, startFencer: assert.fail });
  const ending = new AbortController();
  const runUntil = async (what: string, isSo: () => boolean) => {
    const running = lease.run(ending.signal);
    await until(what, isSo);
    ending.abort();
    await running;
    return lines.map((line) => JSON.parse(line));
  };
  return { paths, count, lease, runUntil };
}

test('a lease that cannot be written is logged once, with its cause; an absent control plane is not', async (t) => {
  // The lease has no folder.
  const { count, runUntil } = scene(t, (renewal) => renewal < 2);
  const lines = await runUntil('it was tried again and again', () => count.renewals > 3);
  const said = lines.filter(({ level }) => level >= 40);
  assert.equal(said.length, 1);
  assert.equal(said[0].msg, 'the lease cannot be renewed');
  assert.match(said[0].err.message, /ENOENT.*lease/);
});

test('a host that hears nothing for a quarter of its lease says once what it waits for, and what becomes of its VMs', async (t) => {
  const { paths, count, lease, runUntil } = scene(t, (renewal) => renewal > 1);
  mkdirSync(paths.run, { recursive: true });
  writeFileSync(paths.fencer, JSON.stringify(identityOfProcess(process.pid)));
  const lines = await runUntil('the lease is over', () => count.renewals > 1 && !lease.isHeld);
  const said = lines.filter(({ msg }) => /^waiting/.test(msg));
  assert.equal(said.length, 1);
  assert.match(
    said[0].msg,
    /^waiting for the control plane; VMs run on, and are paused in [1-3] s unless it renews/,
  );
  assert.equal(said[0].reason, 'it is away');
});

for (const lease_ms of [60_000, null]) {
  const how = lease_ms === null ? 'is not wanted any more' : 'was renewed';
  test(`VMs that the last agent left paused are not queried before they resume, although the lease ${how}`, async (t) => {
    const data = mkdtempSync(join(tmpdir(), 'bt-'));
    t.after(() => rmSync(data, { recursive: true }));
    const paths = pathsIn(data);
    mkdirSync(paths.run, { recursive: true });
    writeFileSync(paths.fenced, '');
    writeFileSync(paths.fencer, JSON.stringify(identityOfProcess(process.pid)));
    if (lease_ms !== null) writeLease(paths.lease, bootMs() + lease_ms, lease_ms);
    const ending = new AbortController();
    const away = new ControlPlaneUnavailable('it is away');
    let polls = 0;
    const client = only<ControlPlaneClient>({
      control_planes: 1,
      renewLease: async () => ({ lease_ms }),
      poll: async () => {
        polls += 1;
        if (polls < 2) throw away;
        return { assignments: [], etag: '' };
      },
    });
    const { log } = logLines();
    const lease = new HostLease({ client, paths, log, startFencer: assert.fail });
    assert.equal(lease.isHeld, false);
    const running = lease.run(ending.signal);
    await lease.whenHeld(ending.signal);
    assert.deepEqual([polls, existsSync(paths.fenced)], [2, false]);
    ending.abort();
    await running;
  });
}

test('the only remaining host resumes its VMs, although its lease had expired and the control plane was briefly away', async (t) => {
  const data = mkdtempSync(join(tmpdir(), 'bt-'));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = pathsIn(data);
  for (const path of [paths.lease, paths.vms]) mkdirSync(dirname(path), { recursive: true });
  writeLease(paths.lease, bootMs() - 1, 3_000);
  let polls = 0;
  const client = only<ControlPlaneClient>({
    control_planes: 1,
    renewLease: async () => ({ lease_ms: null }),
    poll: async () => {
      polls += 1;
      if (polls === 1) throw new ControlPlaneUnavailable('it is away');
      return { assignments: [], etag: '' };
    },
  });
  const lease = new HostLease({ client, paths, log: logLines().log, startFencer: assert.fail });
  assert.equal(lease.isHeld, false);
  const ending = new AbortController();
  const running = lease.run(ending.signal);
  t.after(async () => {
    ending.abort();
    await running;
  });
  await until('VMs may run', () => lease.isHeld);
  assert.equal(polls, 2);
});

/** A host without a lease: what each renewal gets, the last one for ever; and a fencer, which is this process. */
function aloneHost(t: TestContext, answers: readonly ('accepted' | 'refused')[]) {
  const data = mkdtempSync(join(tmpdir(), 'bt-'));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = pathsIn(data);
  for (const folder of [paths.run, paths.vms]) mkdirSync(folder);
  const { log, lines } = logLines();
  const count = { renewals: 0, polls: 0, fencers: 0 };
  const client = {
    control_planes: 1,
    renewLease: async () => {
      const answer = answers[Math.min(count.renewals, answers.length - 1)];
      count.renewals += 1;
      if (answer === 'refused') throw new CredentialRefused('401');
      return { lease_ms: null };
    },
    poll: async () => {
      count.polls += 1;
      return { assignments: [], etag: '' };
    },
  };
  const startFencer = () => {
    count.fencers += 1;
    writeFileSync(paths.fencer, JSON.stringify(identityOfProcess(process.pid)));
  };
  const make = () => {
    const lease = new HostLease({ client, paths, log, startFencer });
    const ending = new AbortController();
    const running = lease.run(ending.signal);
    const end = async () => {
      ending.abort();
      await running;
    };
    t.after(end);
    return { lease, end };
  };
  const said = (what: RegExp) => lines.filter((line) => what.test(JSON.parse(line).msg)).length;
  return { paths, count, make, said };
}

test('a host without a lease that is refused gets the default one, from when it was last accepted; a fencer watches it, and the log says so', async (t) => {
  const { paths, count, make, said } = aloneHost(t, ['accepted', 'refused']);
  const { lease, end } = make();
  const until_ms = await until('its lease counts', () => readLease(paths.lease)?.until_ms);
  assert(until_ms <= bootMs() + DEFAULT_LEASE_MS - 1, 'from the renewal before');
  assert(lease.isHeld, 'until then its VMs run on');
  await until('it was refused again', () => count.renewals > 3);
  assert.equal(readLease(paths.lease)?.until_ms, until_ms, 'a refusal renews nothing');
  assert.equal(count.fencers, 1);
  assert.equal(
    said(/^the control plane refuses the credential of this host; VMs run on, and are paused in \d+ s/),
    1,
  );
  await end();
  // The next agent has its lease from the file, as from one that the control plane gave.
  writeLease(paths.lease, bootMs() - 1, DEFAULT_LEASE_MS);
  assert.equal(make().lease.isHeld, false);
});

test('an agent that was never accepted does not know how long its host has been refused: its VMs are paused at once, until it is accepted and has read its assignments', async (t) => {
  const { paths, count, make, said } = aloneHost(t, ['refused', 'refused', 'accepted']);
  const { lease } = make();
  const lease_ms = await until('its lease is over', () => {
    const kept = readLease(paths.lease);
    return kept && !lease.isHeld ? leftMs(kept) : undefined;
  });
  assert.deepEqual([lease_ms, count.polls], [0, 0]);
  assert.equal(said(/^the control plane refuses the credential of this host; VMs are paused until/), 1);
  await until('VMs may run', () => lease.isHeld);
  assert.deepEqual([count.renewals > 2, count.polls, readLease(paths.lease)], [true, 1, null]);
});
