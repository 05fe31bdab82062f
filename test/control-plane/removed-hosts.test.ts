/** A host that was removed, and one whose machine is gone: its VMs start elsewhere only when it cannot run them any more. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { CommandError } from '../../src/cli/command-error.ts';
import { addHost, listHosts, removeHost, replaceHost } from '../../src/cli/server/hosts.ts';
import { ensureHost, HostTakenError, isHostLost } from '../../src/control-plane/fleet/host-store.ts';
import { expireHosts, LeaseMonitor, marginMs } from '../../src/control-plane/fleet/lease-monitor.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { CredentialRefused } from '../../src/protocol/client.ts';
import { DEFAULT_LEASE_MS } from '../../src/protocol/types.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS, ScriptedAgent } from '../support/scripted-agent.ts';
import { onlyOn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const { db } = api;
const { log } = api.context;
const far = await listenToRemoteHosts(api);
const owner = await api.person();
const never = new AbortController().signal;

const renew = async (agent: ScriptedAgent, kept_ms: number | null) =>
  (await agent.client.renewLease({ kept_ms }, 5_000, never)).lease_ms;
const start = (id: string) =>
  api.as(owner).post<{ error: { code: string; message: string } }>(`/v1/instances/${id}/vm`);

async function runningOn(agent: ScriptedAgent): Promise<InstanceId> {
  const { id } = await api.instance(owner);
  const { host_id } = await agent.heartbeat();
  await onlyOn(api, host_id, async () => assert.equal((await start(id)).status, 202));
  await agent.assigned(id);
  await agent.ready(id);
  return id;
}

async function joined(name: string) {
  const { agent } = await far.join(name, { cpus: '64', memory: '64' });
  await agent.connect(FACTS);
  const { host_id } = await agent.heartbeat();
  return { agent, host_id };
}

/** Lets the time of a monitor pass in steps that are no interruption. The others renew nothing, and have no lease. */
async function watchUntil(monitor: LeaseMonitor, until_ms: number, from_ms = 0): Promise<void> {
  for (let now_ms = from_ms; now_ms < until_ms; now_ms += 5_000)
    await expireHosts(db, monitor, log, () => now_ms);
  await expireHosts(db, monitor, log, () => until_ms);
}

describe('a host that was removed with --lost', () => {
  for (const lease_ms of [8_000, null]) {
    const whose = lease_ms === null ? 'the default lease, where it had none,' : 'its lease';
    test(`is treated as a silent one: its VMs start elsewhere after ${whose} and the margin`, async () => {
      const name = lease_ms === null ? 'bare' : 'leased';
      const { agent, host_id } = await joined(name);
      assert.equal(await renew(agent, lease_ms), 40_000);
      const [runs, failed] = [await runningOn(agent), await runningOn(agent)];
      await agent.failed(failed);
      const kept_ms = lease_ms ?? DEFAULT_LEASE_MS;
      const over_ms = kept_ms + marginMs(kept_ms);
      const said = await removeHost(far.server, name, true);
      assert.match(said, new RegExp(`can start elsewhere in about ${Math.ceil(over_ms / 1000)} s`));
      assert.equal(/had no lease/.test(said), lease_ms === null, said);
      await assert.rejects(agent.heartbeat(), CredentialRefused);

      const monitor = new LeaseMonitor();
      await watchUntil(monitor, over_ms - 1);
      assert.equal((await stateOf(api, owner, runs)).state, 'running', 'that machine may still run it');
      const early = await start(failed);
      assert.deepEqual([early.status, early.body.error.code], [503, 'UNAVAILABLE']);
      assert.equal(await isHostLost(db, host_id), false);

      await watchUntil(monitor, over_ms, over_ms);
      const vm = await stateOf(api, owner, runs);
      assert.deepEqual([vm.state, vm.reason?.code], ['failed', 'host_lost']);
      for (const id of [runs, failed]) {
        assert.equal((await start(id)).status, 202);
        assert.equal((await stateOf(api, owner, id)).host_id, api.host_id);
      }
    });
  }

  test('leaves its name at once to another host, which gets none of its VMs', async () => {
    const { agent, host_id } = await joined('rack');
    const id = await runningOn(agent);
    await removeHost(far.server, 'rack', true);
    assert.doesNotMatch(await listHosts(far.server), /^rack /m);
    const next = await joined('rack');
    assert.notEqual(next.host_id, host_id);
    await assert.rejects(addHost(far.server, 'rack'), /there is a host rack already/);
    assert.deepEqual(await next.agent.assignments(), []);
    const vm = await stateOf(api, owner, id);
    assert.deepEqual([vm.state, vm.host_id], ['running', host_id]);
    await removeHost(far.server, 'rack', true);
  });
});

describe('the host of a data folder', () => {
  const local = () => replaceHost(far.server, 'local', true);
  const silent = sql<Date>`now() - interval '1 hour'`;

  test('is taken by no other one, however long it is silent, or if it never reported', async () => {
    const [mine, other] = [hashToken('mine'), hashToken('other')];
    const id = await ensureHost(db, 'first', mine);
    await assert.rejects(ensureHost(db, 'first', other), HostTakenError);
    await db.updateTable('hosts').set({ last_seen_at: silent }).where('id', '=', id).execute();
    await assert.rejects(ensureHost(db, 'first', other), HostTakenError);
    assert.equal(await ensureHost(db, 'first', mine), id, 'the same data folder is the same host');
  });

  test('is replaced when an operator says that its machine is gone, and it does not report', async () => {
    await assert.rejects(replaceHost(far.server, 'nobody', true), /there is no host nobody/);
    const refusal = await replaceHost(far.server, 'local', false).catch((error: unknown) => error);
    assert(refusal instanceof CommandError);
    assert.deepEqual([refusal.exit_code, /--machine-gone/.test(refusal.message)], [2, true]);
    await api.agent.heartbeat();
    await assert.rejects(local(), /local reported less than 20 s ago, so its machine is not gone/);
    const { agent } = await joined('remote');
    await assert.rejects(replaceHost(far.server, 'remote', true), /is a host of its own machine/);

    const id = await runningOn(api.agent);
    await api.agent.silence();
    await db.updateTable('hosts').set({ last_seen_at: silent }).where('id', '=', api.host_id).execute();
    assert.match(await local(), /^Removed local\. The next npm start .* in about 47 s.* Switch it off\.$/m);
    await assert.rejects(api.agent.heartbeat(), CredentialRefused);
    const token = randomBytes(32).toString('hex');
    const next = await ensureHost(db, 'local', hashToken(token));
    assert.notEqual(next, api.host_id);
    const there = new ScriptedAgent(api.internal_origin, token);
    api.beforeClose(() => there.close());
    await there.connect(FACTS);
    assert.deepEqual(await there.assignments(), []);
    assert.equal((await stateOf(api, owner, id)).state, 'running', 'its machine may still run it');
    await watchUntil(new LeaseMonitor(), DEFAULT_LEASE_MS + marginMs(DEFAULT_LEASE_MS));
    assert.equal((await stateOf(api, owner, id)).reason?.code, 'host_lost');
    await agent.silence();
  });
});
