/** What an ingress gets of changed routes: all of them, and nothing else. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { notify, notifyAll } from '../../src/control-plane/db/notify.ts';
import { CHANGED_MAX } from '../../src/protocol/ingress-types.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { makeSshKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const { agent, db, ingress } = api;
const owner = await api.person();
const client = api.as(owner);

const soon = () => AbortSignal.timeout(15_000);
const poll = (seen: string | null, at_once = false) => ingress.routes({ seen, at_once, blocked: [] }, soon());
const pollHttp = (seen: string | null) => ingress.httpRoutes({ seen, at_once: seen === null }, soon());
/** The present etag. */
const now = async () => (await poll(null, true)).etag;
const patch = (id: InstanceId, change: object) => client.patch(`/v1/instances/${id}`, change);

describe('a held poll gets the routes of the changed instance, and of no other, when', () => {
  type State = Parameters<typeof instanceIn>[2];
  const member = () => api.person({ org_id: owner.org_id, role: 'member' });
  const keys = (id: InstanceId) => `/v1/instances/${id}/ssh-keys`;
  const ways: Record<string, readonly [State, (id: InstanceId) => Promise<unknown>, by?: boolean]> = {
    'its VM starts': ['stopped', (id) => client.post(`/v1/instances/${id}/vm`)],
    'its VM is ready': ['starting', (id) => agent.ready(id)],
    'its guest restarts': ['running', (id) => agent.observe(id, { kind: 'rebooting' })],
    'its VM is suspended': ['running', (id) => client.post(`/v1/instances/${id}/vm/suspend`)],
    'its VM stops': ['running', (id) => client.delete(`/v1/instances/${id}/vm`)],
    'its VM has failed': ['running', (id) => agent.failed(id)],
    'its VM can be woken': ['stopped', (id) => patch(id, { wake_on_connect: true })],
    'its keys are replaced': ['running', (id) => client.put(keys(id), { ssh_key_ids: [] })],
    'it is deleted': ['running', (id) => client.delete(`/v1/instances/${id}`)],
  };
  for (const [what, [state, act]] of Object.entries(ways)) {
    test(what, async () => {
      await instanceIn(api, owner, state);
      const { id } = await instanceIn(api, owner, state);
      const held = poll(await now());
      await act(id);
      const { changed, routes } = await held;
      assert.deepEqual(changed, [id]);
      assert.deepEqual(
        routes.map((each) => each.instance_id),
        what === 'it is deleted' ? [] : [id],
      );
    });
  }

  test('it is created', async () => {
    const held = poll(await now());
    const { id } = await api.instance(owner);
    assert.deepEqual((await held).changed, [id]);
  });

  test('a key is added to its creator, or revoked, or the creator changes roles', async () => {
    const creator = await member();
    const { id } = await instanceIn(api, creator, 'running');
    await instanceIn(api, owner, 'running');
    const acts = [
      () => makeKeyBy(creator),
      () => client.patch(`/v1/orgs/${owner.org_id}/members/${creator.user_id}`, { role: 'billing' }),
      () => client.delete(`/v1/orgs/${owner.org_id}/members/${creator.user_id}`),
    ];
    for (const act of acts) {
      const held = poll(await now());
      await act();
      assert.deepEqual((await held).changed, [id]);
    }
  });

  test('a key of its set is revoked', async () => {
    const other = await member();
    const key = await makeSshKey(db, other.user_id);
    const { id } = await instanceIn(api, owner, 'running');
    await client.put(keys(id), { ssh_key_ids: [key.id] });
    const held = poll(await now());
    await api.as(other).delete(`/v1/me/ssh-keys/${key.id}`);
    assert.deepEqual((await held).changed, [id]);
  });

  test('the guest has its keys', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { vm_id, epoch } = await agent.known(id);
    const held = poll(await now());
    await agent.client.reportKeys({ vm_id, epoch, applied_keys: [] });
    assert.deepEqual((await held).changed, [id]);
  });

  test('one of its HTTP ports is published, changed or removed', async () => {
    const { id } = await api.instance(owner);
    const path = `/v1/instances/${id}/ports`;
    let port = '';
    const acts = [
      async () => {
        port = (await client.post<{ id: string }>(path, { port: 80 })).body.id;
      },
      () => client.patch(`${path}/${port}`, { access: 'public' }),
      () => client.delete(`${path}/${port}`),
    ];
    for (const [i, act] of acts.entries()) {
      const held = pollHttp((await pollHttp(null)).etag);
      await act();
      const { changed, routes } = await held;
      assert.deepEqual([changed, routes.length], [[id], i === 2 ? 0 : 1]);
    }
  });
});

async function makeKeyBy(who: { readonly session: string }): Promise<void> {
  const public_key = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPZmxyw9UxNAoBCgyLoDdCfC5bFhfmXw6sCfFPSpyTZJ';
  const { status, text } = await api.as(who.session).post('/v1/me/ssh-keys', { name: 'k', public_key });
  assert.equal(status, 201, text);
}

test('changes since an earlier answer come together, each instance once', async () => {
  const [one, other] = [await api.instance(owner), await api.instance(owner)];
  const etag = await now();
  for (const wake_on_connect of [true, false, true]) await patch(one.id, { wake_on_connect });
  await patch(other.id, { wake_on_connect: true });
  const { changed, routes } = await poll(etag, true);
  assert.deepEqual(changed, [one.id, other.id]);
  assert.ok(routes.every(({ wake }) => wake));
});

test('a poll that is not held has every change that was committed before', async () => {
  const { id } = await api.instance(owner);
  let etag = await now();
  for (let i = 0; i < 20; i++) {
    await patch(id, { wake_on_connect: i % 2 === 0 });
    const answer = await poll(etag, true);
    assert.deepEqual([answer.changed, answer.routes[0]?.wake], [[id], i % 2 === 0]);
    etag = answer.etag;
  }
  assert.deepEqual((await poll(etag, true)).changed, []);
});

describe('all routes come', () => {
  const all = async (seen: string | null) => {
    const answer = await poll(seen, true);
    assert.equal(answer.changed, undefined);
    assert.ok(answer.routes.length > 1);
    return answer;
  };
  test('to an ingress without any, or with those of another control plane', async () => {
    await all(null);
    await all('another.17');
    await all('nonsense');
  });

  test('when a notification does not say which have changed', async () => {
    const etag = await now();
    await notify(db, 'routes');
    await all(etag);
  });

  test('after more changes than one answer may have', async () => {
    const { id } = await api.instance(owner);
    const etag = await now();
    const more = Array.from({ length: CHANGED_MAX }, () => newId('inst'));
    await notifyAll(db, 'routes', more.slice(1));
    await notify(db, 'routes', id);
    assert.equal((await poll(etag, true)).changed?.length, CHANGED_MAX);
    await notifyAll(db, 'routes', more);
    await all(etag);
  });

  test('after the connection for notifications was lost, with what changed meanwhile', async () => {
    const { id } = await api.instance(owner);
    const etag = await now();
    const held = poll(etag);
    const cut = await sql`
      select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and (query like 'listen %' or query = 'select 1')`.execute(db);
    assert.ok(cut.rows.length > 0);
    // Unheard, or heard on the new connection.
    await patch(id, { wake_on_connect: true });
    const { changed, routes, etag: after } = await held;
    assert.equal(changed, undefined);
    assert.notEqual(after, etag);
    await until('the change is there', async () => {
      const { routes: newest } = await poll(null);
      return newest.find((each) => each.instance_id === id)?.wake === true;
    });
    assert.ok(routes.length > 1);
  });
});
