/** The internal API of the ingress: unconfirmed revocations, wake, idle stop. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { deleteIngress, insertIngress } from '../../src/control-plane/fleet/control-plane-store.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { listIdle, recordActivity } from '../../src/control-plane/vms/activity-store.ts';
import { stopIdle } from '../../src/control-plane/vms/stop-vm.ts';
import type { ExecEnd } from '../../src/protocol/exec-types.ts';
import type { IngressRoute } from '../../src/protocol/ingress-types.ts';
import type { ExecId, InstanceId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile } from '../support/api.ts';
import { makeExec } from '../support/execs.ts';
import { assertError } from '../support/expect.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import { makePerson, makeSshKey, type Person } from '../support/people.ts';
import { instanceIn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const { agent, db } = api;
const log = createLog('test', 'silent');
const signal = new AbortController().signal;

const routes = async () => api.ingress.routes({ seen: null, at_once: true, blocked: [] }, signal);
async function routeOf(id: InstanceId): Promise<IngressRoute> {
  const found = (await routes()).routes.find((each) => each.instance_id === id);
  assert(found);
  return found;
}

test('the ingress is notified of each reset of a guest, and a requested restart stays the reason', async () => {
  const { id } = await instanceIn(api, owner, 'restarting');
  const found = async () => {
    const { state, reason } = await stateOf(api, owner, id);
    return [(await routeOf(id)).resets, state, reason?.code];
  };
  for (const resets of [0, 1, 2]) {
    assert.deepEqual(await found(), [resets, 'restarting', 'restart_requested']);
    await agent.observe(id, { kind: 'rebooting' });
  }
  await agent.ready(id);
  assert.deepEqual(await found(), [3, 'running', 'ready']);
});

describe('a revocation', () => {
  const fingerprints = async (id: InstanceId) => {
    const set = await client.get<{ data: { fingerprint: string }[] }>(`/v1/instances/${id}/ssh-keys`);
    return set.body.data.map((key) => key.fingerprint);
  };
  /** Running, its guest lets in what it should. */
  const runningWith = async (who: Person, ...members: Person[]) => {
    const { id } = await instanceIn(api, who, 'starting');
    const keys = [];
    for (const each of members) keys.push(await makeSshKey(db, each.user_id));
    await api.as(who).put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: keys.map((key) => key.id) });
    await agent.ready(id, null, await fingerprints(id));
    assert.equal((await routeOf(id)).revoking, false);
    return { id, keys };
  };
  const colleague = () => api.person({ org_id: owner.org_id, role: 'member' });

  const ways: Record<string, (id: InstanceId, leaver: Person, key_id: string) => Promise<unknown>> = {
    'of the key': (_id, leaver, key_id) => api.as(leaver).delete(`/v1/me/ssh-keys/${key_id}`),
    'by another key set': (id) => client.put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [] }),
    'by a return to the account': (id) => client.put(`/v1/instances/${id}/ssh-keys`, { mode: 'account' }),
    'with the member': (_id, leaver) => client.delete(`/v1/orgs/${owner.org_id}/members/${leaver.user_id}`),
  };
  for (const [what, act] of Object.entries(ways)) {
    test(`${what} is unconfirmed until the guest confirms it, and the ingress is notified at once`, async () => {
      const leaver = await colleague();
      const { id, keys } = await runningWith(owner, leaver);
      const { etag } = await routes();
      const held = api.ingress.routes({ seen: etag, blocked: [] }, signal);
      await act(id, leaver, keys[0]?.id ?? '');
      const told = (await held).routes.find((each) => each.instance_id === id);
      assert.deepEqual([told?.revoking, typeof told?.target], [true, 'string']);
      const { vm_id, epoch } = await agent.known(id);
      const stale = await agent.client.reportKeys({ vm_id, epoch: epoch - 1, applied_keys: [] });
      assert.equal(stale.outcome, 'fenced');
      assert.equal((await routeOf(id)).revoking, true);
      await agent.client.reportKeys({ vm_id, epoch, applied_keys: await fingerprints(id) });
      assert.equal((await routeOf(id)).revoking, false);
    });
  }

  test('by a creator whose role may not write instances: the ingress is notified at once, too', async () => {
    const creator = await colleague();
    const { id } = await instanceIn(api, creator, 'starting');
    await makeSshKey(db, creator.user_id);
    await agent.ready(id, null, await fingerprints(id));
    const { etag } = await routes();
    const held = api.ingress.routes({ seen: etag, blocked: [] }, signal);
    const path = `/v1/orgs/${owner.org_id}/members/${creator.user_id}`;
    assert.equal((await client.patch(path, { role: 'billing' })).status, 200);
    assert.equal((await held).routes.find((each) => each.instance_id === id)?.revoking, true);
  });

  test('an added key needs no confirmation, but connections wait until the guest accepts it', async () => {
    const someone = await colleague();
    const { id } = await runningWith(owner, someone);
    const more = await makeSshKey(db, someone.user_id);
    const ids = (await client.get<{ data: { id: string }[] }>(`/v1/instances/${id}/ssh-keys`)).body.data;
    await client.put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [...ids.map((key) => key.id), more.id] });
    const { revoking, settling } = await routeOf(id);
    assert.deepEqual([revoking, settling], [false, true]);
    const { vm_id, epoch } = await agent.known(id);
    await agent.client.reportKeys({ vm_id, epoch, applied_keys: await fingerprints(id) });
    assert.equal((await routeOf(id)).settling, false);
  });

  test('a stop removes the target, and the ingress is notified at once', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { etag } = await routes();
    const held = api.ingress.routes({ seen: etag, blocked: [] }, signal);
    await client.delete(`/v1/instances/${id}/vm`);
    assert.equal((await held).routes.find((each) => each.instance_id === id)?.target, null);
  });

  test('a stopped VM has no target', async () => {
    const { id } = await runningWith(owner, await colleague());
    await client.put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [] });
    await client.delete(`/v1/instances/${id}/vm`);
    assert.deepEqual([(await routeOf(id)).revoking, (await routeOf(id)).target], [false, null]);
  });
});

describe('a wake', () => {
  const wakeable = async (state: 'stopped' | 'running' | 'stopping' | 'failed', who = owner) => {
    const { id } = await instanceIn(api, who, state);
    await api.as(who).patch(`/v1/instances/${id}`, { wake_on_connect: true });
    return id;
  };
  const wake = (instance_id: InstanceId) => api.ingress.wake({ instance_id }, signal);

  test('starts a stopped VM once, as the system, with its reason', async () => {
    const id = await wakeable('stopped');
    assert.equal((await routeOf(id)).wake, true);
    const answers = await Promise.all([wake(id), wake(id), wake(id)]);
    assert(answers.every((each) => each.outcome === 'coming'));
    const vm = await stateOf(api, owner, id);
    assert.deepEqual(
      [vm.state, vm.boot, vm.reason?.code, vm.reason?.actor],
      ['starting', 1, 'woken', 'system'],
    );
    await agent.assigned(id);
  });

  test('waits for a stop to end, and then starts', async () => {
    const id = await wakeable('stopping');
    assert.equal((await wake(id)).outcome, 'coming');
    assert.equal((await stateOf(api, owner, id)).state, 'stopping');
    await agent.stopped(id);
    await wake(id);
    assert.equal((await stateOf(api, owner, id)).state, 'starting');
  });

  test('is refused if it is off, for a failed VM, and for an unknown one', async () => {
    const off = (await instanceIn(api, owner, 'stopped')).id;
    const failed = await wakeable('failed');
    assert.equal((await routeOf(off)).wake, false);
    assert.equal((await routeOf(failed)).wake, false);
    const { id: other } = await api.instance(owner);
    await client.delete(`/v1/instances/${other}`);
    for (const id of [off, failed, other]) assert.equal((await wake(id)).outcome, 'refused');
    assert.equal((await stateOf(api, owner, off)).boot, 0);
  });

  test('is refused beyond the quota, with the reason', async () => {
    const poor = await makePerson(db);
    const id = await wakeable('stopped', poor);
    await setQuota(db, poor.org_id, { cpus: 0 });
    const answer = await wake(id);
    assert(answer.outcome === 'refused');
    assert.match(answer.why, /quota/);
  });

  test('is refused for a disk that its image has outgrown, with the reason', async () => {
    const { id } = await api.instance(owner, { disk_gib: 1, wake_on_connect: true });
    const version = 'a'.repeat(64);
    await db
      .insertInto('image_versions')
      .values({
        ...{ image_id: 'debian-12', version, recipe: 'r', index_sha256: version, current: true },
        ...{ size_bytes: 2 * 2 ** 30, stored_bytes: 1, removed_at: null },
      })
      .execute();
    const answer = await wake(id);
    await db.deleteFrom('image_versions').execute();
    assert(answer.outcome === 'refused');
    assert.match(answer.why, /needs a disk of 2 GiB/);
  });
});

describe('an idle stop', () => {
  /** Running since long ago, with a timeout of a minute. */
  const idler = async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answer = await client.patch(`/v1/instances/${id}`, { idle_timeout_seconds: 60 });
    assert.equal(answer.status, 200, answer.text);
    await longAgo(id);
    return id;
  };
  const longAgo = (id: InstanceId) =>
    sql`update vms set started_at = now() - interval '1 hour', active_at = now() - interval '1 hour'
        where instance_id = ${id}`.execute(db);
  const report = (watched_ms: number, active: { instance_id: InstanceId; ago_ms: number }[] = []) =>
    api.ingress.reportActivity({ watched_ms, active }, signal);
  const isStopped = async (id: InstanceId) => {
    await stopIdle(db, log);
    return (await stateOf(api, owner, id)).state === 'stopping';
  };
  const LONG = 3_600_000;

  test('happens after the timeout without connections and calls, with its reason', async () => {
    const id = await idler();
    await report(LONG);
    assert.equal(await isStopped(id), true);
    const { reason } = await stateOf(api, owner, id);
    assert.deepEqual([reason?.code, reason?.actor], ['idle', 'system']);
    assert.equal((await agent.known(id)).desired, 'stopped');
  });

  test('is delayed by a connection, also one that ended between two reports', async () => {
    const id = await idler();
    await report(LONG, [{ instance_id: id, ago_ms: 30_000 }]);
    assert.equal(await isStopped(id), false);
    await longAgo(id);
    await report(LONG, [{ instance_id: id, ago_ms: 61_000 }]);
    assert.equal(await isStopped(id), true);
  });

  test('is delayed by calls on the VM, not by reading its state', async () => {
    await report(LONG);
    const calls: Record<string, (path: string) => Promise<unknown>> = {
      start: (path) => client.post(`${path}/vm`),
      exec: async (path) => {
        const asked = client.post(`${path}/vm/exec`, { command: ['true'] });
        const { id } = await agent.nextCall('exec');
        const result = { exit_code: 0, stdout: '', stderr: '', truncated: false };
        await agent.client.answerCall({ id, answer: { result } });
        await asked;
      },
      'console ticket': (path) => client.post(`${path}/vm/console/ticket`),
      settings: (path) => client.patch(path, { idle_timeout_seconds: 120 }),
    };
    for (const [name, call] of Object.entries(calls)) {
      const id = await idler();
      await call(`/v1/instances/${id}`);
      assert.equal(await isStopped(id), false, name);
    }
    const id = await idler();
    await client.get(`/v1/instances/${id}/vm`);
    await client.get(`/v1/instances/${id}/ssh`);
    assert.equal(await isStopped(id), true);
  });

  test("is delayed by a running exec, but not by one that waits for nobody's input", async () => {
    await report(LONG);
    const id = await idler();
    const place = { instance_id: id, host_id: api.host_id };
    const [with_input, without] = [
      await makeExec(db, place, 'running'),
      await makeExec(db, place, 'running'),
    ];
    await db.updateTable('execs').set({ stdin: false }).where('id', '=', without).execute();
    const say = async (exec_id: ExecId, waits: boolean, end: ExecEnd | null = null) => {
      await agent.client.reportExecs(
        { execs: [{ instance_id: id, exec_id, output_bytes: 0, end, waits }] },
        signal,
      );
      await longAgo(id);
    };
    await say(without, true);
    assert.equal(await isStopped(id), false, 'it was started without input');
    const ended_at = new Date().toISOString();
    await say(without, false, { state: 'exited', exit_code: 0, signal: null, timed_out: false, ended_at });
    assert.equal(await isStopped(id), false, 'somebody is attached to the other');
    await agent.client.reportExecs(
      { execs: [{ instance_id: id, exec_id: with_input, output_bytes: 0, end: null, waits: true }] },
      signal,
    );
    assert.equal(await isStopped(id), false, 'it was used until now');
    await longAgo(id);
    assert.equal(await isStopped(id), true);
  });

  test('never happens without a report of the ingress, nor soon after the first one', async () => {
    const id = await idler();
    await report(LONG);
    await sql`update ingresses set reported_at = now() - interval '1 minute'`.execute(db);
    assert.equal(await isStopped(id), false);
    await report(5_000);
    assert.equal(await isStopped(id), false);
    await report(LONG);
    assert.equal(await isStopped(id), true);
  });

  test('never happens after an incomplete report', async () => {
    const id = await idler();
    await sql`update ingresses set reported_at = now() - interval '1 minute'`.execute(db);
    const { reported } = await db.transaction().execute(async (tx) => {
      await sql`select from vms where instance_id = ${id} for update`.execute(tx);
      const reported = report(LONG, [{ instance_id: id, ago_ms: 0 }]);
      await untilLocksAreWaitedFor(db, 1);
      assert.deepEqual(await listIdle(db), []);
      return { reported };
    });
    await reported;
    assert.equal(await isStopped(id), false);
  });

  test('waits for every ingress that lives, and no longer for one that is dead or removed', async () => {
    const token = 'of the other';
    const other = await insertIngress(db, 'other', hashToken(token));
    assert(other);
    const saysNothingSince = (age: string) =>
      sql`update ingresses set reported_at = now() - ${age}::interval where id = ${other}`.execute(db);
    const id = await idler();
    await report(LONG);
    await recordActivity(db, other, { watched_ms: LONG, active: [{ instance_id: id, ago_ms: 0 }] });
    assert.equal(await isStopped(id), false, 'it is in use through the other');
    await longAgo(id);
    await saysNothingSince('21 seconds');
    assert.equal(await isStopped(id), false, 'it may be in use through the other');
    await recordActivity(db, other, { watched_ms: 1_000, active: [] });
    assert.equal(await isStopped(id), false, 'the other has only begun to watch');
    await saysNothingSince('301 seconds');
    await report(LONG);
    assert.equal(await isStopped(id), true, 'the other is dead');

    const next = await idler();
    await saysNothingSince('21 seconds');
    assert.equal(await isStopped(next), false);
    assert.equal(await deleteIngress(db, 'other'), other);
    assert.equal(await isStopped(next), true, 'the other is removed');
  });

  test('never happens without a timeout', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await longAgo(id);
    await report(LONG);
    assert.equal(await isStopped(id), false);
  });
});

describe('the settings', () => {
  test('are set at creation and by PATCH, and shown', async () => {
    const made = await api.instance(owner, { idle_timeout_seconds: 60, wake_on_connect: true });
    assert.deepEqual([made.idle_timeout_seconds, made.wake_on_connect], [60, true]);
    const plain = await api.instance(owner);
    assert.deepEqual([plain.idle_timeout_seconds, plain.wake_on_connect], [null, false]);
    const change = { idle_timeout_seconds: null, wake_on_connect: false, auto_flush_seconds: 7 };
    const { body } = await client.patch<typeof change>(`/v1/instances/${made.id}`, change);
    const { idle_timeout_seconds, wake_on_connect, auto_flush_seconds } = body;
    assert.deepEqual({ idle_timeout_seconds, wake_on_connect, auto_flush_seconds }, change);
  });

  test('of a running VM reach its host and the ingress', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await client.patch(`/v1/instances/${id}`, { auto_flush_seconds: 9, wake_on_connect: true });
    await agent.assigned(id, 'the new interval', (each) => each.spec.auto_flush_seconds === 9);
    assert.equal((await routeOf(id)).wake, true);
  });

  for (const bad of [
    { idle_timeout_seconds: 59 },
    { idle_timeout_seconds: 2_592_001 },
    { idle_timeout_seconds: 'x' },
    { wake_on_connect: null },
    { auto_flush_seconds: 0 },
  ]) {
    test(`400 for ${JSON.stringify(bad)}`, async () => {
      const { id } = await api.instance(owner);
      assertError(await client.patch(`/v1/instances/${id}`, bad), 'INVALID_REQUEST');
      assertError(await client.post('/v1/instances', { name: 'bad-setting', ...bad }), 'INVALID_REQUEST');
    });
  }
});
