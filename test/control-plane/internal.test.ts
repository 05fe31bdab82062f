/** What hosts and the ingress are told and believed: tokens, which calls a credential opens, epochs, the commit's compare-and-swap, polls, routes. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { Agent, request } from 'undici';
import { noteDeleted } from '../../src/control-plane/disks/store.ts';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { TROUBLE_CODES } from '../../src/control-plane/vms/model.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import type { Observation, VmReasonCode } from '../../src/protocol/types.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile, type VmOut } from '../support/api.ts';
import type { ErrorBody } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { makeSshKey, randomPublicKey } from '../support/people.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { ScriptedAgent, SSH_ADDRESS, segmentOf } from '../support/scripted-agent.ts';
import { instanceIn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const { agent } = api;

/** A second host with an agent of its own. */
const other_token = randomBytes(32).toString('hex');
await ensureHost(api.db, 'other', hashToken(other_token));
const other = new ScriptedAgent(api.internal_origin, other_token);
after(() => other.close());

const STOPPED = { kind: 'stopped', commit_id: null } as const;
const COMMITTED = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

describe('401', () => {
  const wrong = { none: {}, unknown: { authorization: `Bearer ${'0'.repeat(64)}` } };
  for (const [what, headers] of Object.entries(wrong)) {
    test(`every internal call with ${what} token`, async () => {
      for (const path of [...Object.values(ROUTES).map((route) => route.path), '/internal/v1/no-such']) {
        const answer = await fetch(`${api.internal_origin}${path}`, {
          method: 'POST',
          headers: { ...headers, 'content-type': 'application/json' } as Record<string, string>,
          body: '{}',
        });
        assert.equal(answer.status, 401, path);
        await answer.text();
      }
    });
  }
  test("a user's session is no host's token", async () => {
    const client = new ControlPlaneClient({ address: api.internal_origin, token: owner.session });
    await assert.rejects(client.head(newId('inst')), /401/);
    await client.close();
  });
  test("a host's token is no user's credential", async () => {
    assert.equal((await api.as(api.host_token).get('/v1/instances')).status, 401);
  });
  test('the internal API is not on the public listener', async () => {
    const answer = await api.as(api.host_token).post('/internal/v1/routes', { seen: null, blocked: [] });
    assert.equal(answer.status, 404);
  });
});

describe('the read order of a boot', () => {
  test('is returned to the next placement with the head', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { epoch } = await agent.known(id);
    assert.deepEqual((await agent.client.head(id))?.boot_order, []);
    const report = { instance_id: id, epoch, blocks: [7, 3, 70_000] };
    assert.deepEqual(await agent.client.bootOrder(report), { outcome: 'accepted' });
    assert.deepEqual((await agent.client.head(id))?.boot_order, [7, 3, 70_000]);
  });

  test('is accepted from the newest placement on its own host only', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { epoch } = await agent.known(id);
    const report = { instance_id: id, epoch, blocks: [1] };
    const fenced = { outcome: 'fenced' };
    assert.deepEqual(await agent.client.bootOrder({ ...report, epoch: epoch - 1 }), fenced);
    assert.deepEqual(await other.client.bootOrder(report), fenced);
    assert.deepEqual((await agent.client.head(id))?.boot_order, []);
  });

  test('is stored up to its bound, and only with possible block numbers', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { epoch } = await agent.known(id);
    const some = Array.from({ length: 4_096 }, (_, i) => i);
    for (const blocks of [[-1], [0.5], [2 ** 31], [...some, 4_096]])
      await assert.rejects(agent.client.bootOrder({ instance_id: id, epoch, blocks }), /with 400/);
    await agent.client.bootOrder({ instance_id: id, epoch, blocks: some });
    assert.deepEqual((await agent.client.head(id))?.boot_order, some);
  });
});

describe('a disk', () => {
  test('of no instance is unknown, and deleted only if the database says so', async () => {
    const [unknown, deleted] = [newId('inst'), newId('inst')];
    await noteDeleted(api.db, deleted);
    assert.deepEqual(await agent.client.findHead(unknown), { outcome: 'unknown' });
    assert.deepEqual(await agent.client.findHead(deleted), { outcome: 'deleted' });
  });
});

describe('a commit', () => {
  test('moves the head to its generation, with its bytes and time', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.heartbeat([{ instance_id: id, dirty_bytes: 5_000 }]);
    assert.equal((await stateOf(api, owner, id)).disk.dirty_bytes, 5_000);
    const answer = await agent.commit(id, 1);
    assert(answer.outcome === 'committed');
    assert.match(answer.durable_at, COMMITTED);
    const { disk } = await stateOf(api, owner, id);
    assert.deepEqual(
      [disk.generation, disk.durable_at, disk.dirty_bytes, disk.stored_bytes],
      [1, answer.durable_at, 0, 4096],
    );
    const head = await agent.client.head(id);
    assert.deepEqual(
      [head?.generation, head?.layers.map((segment) => segment.key)],
      [1, [`disks/${id}/seg/1/1-00000000-0`]],
    );
  });

  test('repeated is accepted once, with the same time', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const first = await agent.commit(id, 1);
    assert.deepEqual(await agent.commit(id, 1), first);
    await agent.commit(id, 2);
    assert.deepEqual(await agent.commit(id, 1), first, 'also after the next one');
    const { disk } = await stateOf(api, owner, id);
    assert.deepEqual([disk.generation, disk.stored_bytes], [2, 8192]);
  });

  test('of a generation that another flush has committed is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    const segments = [segmentOf(id, 1, 1, 'e15e15e1')];
    assert.equal((await agent.commit(id, 1, { segments })).outcome, 'fenced');
  });

  test('that skips a generation, or goes back, is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    for (const generation of [0, 2, 3]) {
      assert.equal((await agent.commit(id, generation)).outcome, 'fenced', String(generation));
    }
    assert.equal((await stateOf(api, owner, id)).disk.generation, 0);
  });

  test('of an older or an invented epoch is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    for (const epoch of [0, 2]) assert.equal((await agent.commit(id, 1, { epoch })).outcome, 'fenced');
  });

  test('of an earlier VM, after another boot got the disk, is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const before = await agent.known(id);
    await agent.failed(id);
    await api.as(owner).post(`/v1/instances/${id}/vm`);
    const late = { vm_id: before.vm_id, epoch: before.epoch };
    assert.equal((await agent.commit(id, 1, late)).outcome, 'fenced');
    assert.equal((await agent.commit(id, 1, { vm_id: newId('vm') })).outcome, 'fenced');
    assert.equal((await agent.commit(id, 1)).outcome, 'committed');
  });

  test('of another host is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { vm_id, epoch } = await agent.known(id);
    const commit = {
      instance_id: id,
      vm_id,
      epoch,
      generation: 1,
      ...{ commit_id: randomUUID(), parent_id: (await agent.client.head(id))?.commit_id ?? '' },
      image_version: 'a'.repeat(64),
      segments: [],
      consistency: 'crash' as const,
      dirty_bytes: 0,
    };
    assert.equal((await other.client.commit(commit)).outcome, 'fenced');
  });

  test('of an instance that is being deleted, or is unknown, is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await api.as(owner).delete(`/v1/instances/${id}`);
    assert.equal((await agent.commit(id, 1)).outcome, 'fenced');
    assert.equal((await agent.commit(id, 1, { instance_id: newId('inst') })).outcome, 'fenced');
  });

  test('of one generation by twenty writers at once succeeds for one', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, writer) =>
        agent.commit(id, 1, {
          segments: [segmentOf(id, 1, 1, `${writer}`.padStart(8, '0'))],
        }),
      ),
    );
    assert.equal(answers.filter((answer) => answer.outcome === 'committed').length, 1);
    assert.equal((await agent.client.head(id))?.layers.length, 1);
  });
});

describe('a report', () => {
  test('of an older epoch is fenced and changes nothing', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { vm_id, epoch } = await agent.known(id);
    await agent.failed(id);
    await api.as(owner).post(`/v1/instances/${id}/vm`);
    const reason = { code: 'vm_died', message: 'Too late.' } as const;
    for (const report of [
      { vm_id, epoch },
      { vm_id: (await agent.known(id)).vm_id, epoch },
    ]) {
      const answer = await agent.client.report({
        ...report,
        observed: { kind: 'failed', reason, guest_ran: true },
      });
      assert.deepEqual(answer, { outcome: 'fenced' });
    }
    assert.equal((await stateOf(api, owner, id)).state, 'starting');
  });

  test('of another host is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { vm_id, epoch } = await agent.known(id);
    const answer = await other.client.report({ vm_id, epoch, observed: STOPPED });
    assert.deepEqual(answer, { outcome: 'fenced' });
    assert.equal((await stateOf(api, owner, id)).state, 'running');
  });

  test('of an unknown VM is fenced', async () => {
    const answer = await agent.client.report({ vm_id: newId('vm'), epoch: 1, observed: STOPPED });
    assert.deepEqual(answer, { outcome: 'fenced' });
  });

  test('repeated changes nothing the second time', async () => {
    const { id } = await instanceIn(api, owner, 'stopping');
    await agent.stopped(id);
    const once = await stateOf(api, owner, id);
    await agent.stopped(id);
    await agent.failed(id);
    assert.deepEqual(await stateOf(api, owner, id), once);
  });

  describe('of a stop', () => {
    const recovered = { code: 'recovered', message: 'It continues from generation 1.' } as const;
    const flush = (id: string) => api.as(owner).post<ErrorBody>(`/v1/instances/${id}/vm/flush`);

    test('counts only if it names the head: else the VM has failed, and no flush is answered', async () => {
      for (const commit of ['none', 'another', 'an earlier one'] as const) {
        const { id } = await instanceIn(api, owner, 'running');
        await agent.commit(id, 1);
        const earlier = (await agent.client.head(id))?.commit_id ?? '';
        await agent.commit(id, 2);
        const flushing = flush(id);
        await agent.askedToFlush(id);
        await api.as(owner).delete(`/v1/instances/${id}/vm`);
        const commit_id = { none: null, another: randomUUID(), 'an earlier one': earlier }[commit];
        const said = commit_id === null ? { recovered } : {};
        const answer = await agent.observe(id, { kind: 'stopped', commit_id, ...said });
        assert.deepEqual(answer, { outcome: 'unwanted' }, commit);
        const vm = await stateOf(api, owner, id);
        assert.deepEqual([vm.state, vm.reason?.code], ['failed', 'vm_died'], commit);
        assert.match(vm.reason?.message ?? '', commit_id ? /may be lost/ : /continues from generation 1/);
        assertError(await flushing, 'CONFLICT');
        // Said again, it changes nothing, and does not count either.
        assert.deepEqual(await agent.observe(id, { kind: 'stopped', commit_id }), { outcome: 'unwanted' });
        // The next start is told that something may be missing.
        await api.as(owner).post(`/v1/instances/${id}/vm`);
        const next = await agent.assigned(id, 'the next boot', ({ boot }) => boot === 2);
        assert.deepEqual([next.previous_failed, next.last_ran_epoch], [true, 1], commit);
      }
    });

    test('that names the head is repeated without effect', async () => {
      const { id } = await instanceIn(api, owner, 'stopping');
      await agent.commit(id, 1);
      const head = await agent.client.head(id);
      assert(head);
      for (const _ of ['once', 'again']) {
        const named: Observation = { kind: 'stopped', commit_id: head.commit_id };
        assert.deepEqual(await agent.observe(id, named), { outcome: 'accepted' });
        assert.equal((await stateOf(api, owner, id)).state, 'stopped');
      }
    });

    test('ends a VM without a commit only where that loss was told by its failure, or another VM’s', async () => {
      const { id } = await instanceIn(api, owner, 'failed');
      await api.as(owner).delete(`/v1/instances/${id}/vm`);
      assert.deepEqual(await agent.stoppedWithLoss(id, recovered), { outcome: 'accepted' });
      assert.equal((await stateOf(api, owner, id)).reason?.code, 'recovered');

      const started = await instanceIn(api, owner, 'failed');
      const vm = `/v1/instances/${started.id}/vm`;
      await api.as(owner).post(vm);
      await agent.assigned(started.id, 'the next boot', ({ boot }) => boot === 2);
      await api.as(owner).delete(vm);
      // Not without a word.
      const silent = { kind: 'stopped', commit_id: null } as const;
      assert.deepEqual(await agent.observe(started.id, silent), { outcome: 'unwanted' });
      assert.equal((await stateOf(api, owner, started.id)).state, 'failed');
    });
  });

  test('of a loss that nobody reads, because a stop came before, does not count', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    await api.as(owner).delete(`/v1/instances/${id}/vm`);
    const recovered = { code: 'recovered', message: 'It continues from generation 0.' } as const;
    assert.deepEqual(await agent.ready(id, recovered), { outcome: 'ignored' });
    await agent.stopped(id, recovered);
    const vm = await stateOf(api, owner, id);
    assert.deepEqual([vm.state, vm.reason?.code], ['stopped', 'recovered']);
  });

  test('that answers an older restart does not end the newer one', async () => {
    const { id } = await instanceIn(api, owner, 'restarting');
    const { vm_id, epoch } = await agent.known(id);
    const observed = {
      kind: 'running',
      reboots: 0,
      ssh_address: SSH_ADDRESS,
      host_keys: [],
      applied_keys: [],
      recovered: null,
    } as const;
    await agent.client.report({ vm_id, epoch, observed });
    assert.equal((await stateOf(api, owner, id)).state, 'restarting');
    await agent.ready(id);
    assert.equal((await stateOf(api, owner, id)).state, 'running');
  });

  test('of a guest that waits for its host, or whose agent is silent, sets the reason of running until it recovers', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const reason = { code: 'disk_full', message: 'The host has no room.' } as const;
    const shown = async () => {
      const vm = await stateOf(api, owner, id);
      return [vm.state, vm.reason?.code];
    };
    await agent.observe(id, { kind: 'stalled', reason });
    assert.deepEqual(await shown(), ['running', 'disk_full']);
    await agent.observe(id, { kind: 'resumed' });
    assert.deepEqual(await shown(), ['running', 'ready']);
    for (const code of TROUBLE_CODES as VmReasonCode[]) {
      await agent.observe(id, { kind: 'stalled', reason: { ...reason, code } });
      assert.deepEqual(await shown(), ['running', code]);
      await agent.ready(id);
      assert.deepEqual(await shown(), ['running', 'ready']);
    }
    await api.as(owner).delete(`/v1/instances/${id}/vm`);
    await agent.observe(id, { kind: 'stalled', reason });
    assert.deepEqual(await shown(), ['stopping', 'stop_requested']);
  });

  test('of a power-off by the guest stops the VM, and tells the host to save it', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.observe(id, { kind: 'powered_off' });
    const vm = await stateOf(api, owner, id);
    assert.deepEqual([vm.state, vm.reason?.code], ['stopping', 'guest_poweroff']);
    assert.equal((await agent.known(id)).desired, 'stopped');
  });

  test('of a reboot by the guest is shown as restarting until it answers again', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.observe(id, { kind: 'rebooting' });
    assert.equal((await stateOf(api, owner, id)).state, 'restarting');
    await agent.ready(id);
    assert.equal((await stateOf(api, owner, id)).state, 'running');
  });
});

test('of a login is shown on its key, if the instance accepts that key', async () => {
  const person = await api.person();
  const { id } = await instanceIn(api, person, 'running');
  const { vm_id, epoch } = await agent.known(id);
  const mine = await makeSshKey(api.db, person.user_id);
  const other_of_mine = await makeSshKey(api.db, person.user_id);
  const foreign = await makeSshKey(api.db, (await api.person()).user_id);
  const used = async () => {
    const keys = api.db.selectFrom('ssh_keys').select('id').where('last_used_at', 'is not', null);
    return (await keys.execute()).map((row) => row.id);
  };
  const report = {
    vm_id,
    epoch,
    fingerprints: [mine.fingerprint, foreign.fingerprint, `SHA256:${'x'.repeat(43)}`],
  };
  assert.deepEqual(await other.client.reportLogins(report), { outcome: 'fenced' });
  assert.deepEqual(await agent.client.reportLogins({ ...report, epoch: epoch + 1 }), { outcome: 'fenced' });
  assert.deepEqual(await used(), []);
  assert.deepEqual(await agent.client.reportLogins(report), { outcome: 'accepted' });
  assert.deepEqual(await used(), [mine.id]);
  const { body } = await api
    .as(person)
    .get<{ data: { id: string; last_used_at: string | null }[] }>('/v1/me/ssh-keys');
  const shown = new Map(body.data.map((key) => [key.id, key.last_used_at]));
  assert.ok(Date.now() - Date.parse(shown.get(mine.id) ?? '') < 60_000);
  assert.equal(shown.get(other_of_mine.id), null);
});

describe('a poll', () => {
  test('waits until something changes, then returns it', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const signal = new AbortController().signal;
    const { etag } = await agent.client.poll({ seen: null }, signal);
    const held = agent.client.poll({ seen: etag }, signal);
    await api.as(owner).delete(`/v1/instances/${id}/vm`);
    const answer = await held;
    assert.notEqual(answer.etag, etag);
    assert.equal(answer.assignments.find((each) => each.instance_id === id)?.desired, 'stopped');
  });

  test('has the keys of its VMs, sorted, and returns their changes', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    assert.deepEqual((await agent.known(id)).authorized_keys, []);

    const { line } = await makeSshKey(api.db, owner.user_id);
    const added = await api
      .as(owner)
      .post<{ id: string }>('/v1/me/ssh-keys', { name: 'new', public_key: randomPublicKey().line });
    assert.equal(added.status, 201);
    const two = await agent.assigned(id, 'both keys', (each) => each.authorized_keys.length === 2);
    assert.deepEqual([...two.authorized_keys].sort(), two.authorized_keys);
    await api.as(owner).delete(`/v1/me/ssh-keys/${added.body.id}`);
    const one = await agent.assigned(id, 'one key', (each) => each.authorized_keys.length === 1);
    assert.deepEqual(one.authorized_keys, [line]);
  });

  test("never returns another host's VMs", async () => {
    await instanceIn(api, owner, 'running');
    assert.deepEqual(await other.assignments(), []);
  });

  test('does not contain a stopped VM', async () => {
    const { id } = await instanceIn(api, owner, 'stopping');
    await agent.stopped(id);
    const assigned = await agent.assignments();
    assert.equal(
      assigned.some((each) => each.instance_id === id),
      false,
    );
  });
});

test('the head of an unknown instance is null', async () => {
  assert.equal(await agent.client.head(newId('inst') as InstanceId), null);
});

describe('the routes', () => {
  const read = async () =>
    (await api.ingress.routes({ seen: null, blocked: [] }, new AbortController().signal)).routes;
  const targetOf = async (id: string) => (await read()).find((each) => each.instance_id === id)?.target;

  test('lead to a VM as long as it answers', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    assert.equal(await targetOf(id), null);
    await agent.ready(id);
    assert.equal(await targetOf(id), SSH_ADDRESS);
    await api.as(owner).post<VmOut>(`/v1/instances/${id}/vm/restart`);
    assert.equal(await targetOf(id), SSH_ADDRESS);
    await api.as(owner).delete(`/v1/instances/${id}/vm`);
    assert.equal(await targetOf(id), null);
  });

  test('end at once with the deletion', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const signal = new AbortController().signal;
    const { etag } = await api.ingress.routes({ seen: null, at_once: true, blocked: [] }, signal);
    const held = api.ingress.routes({ seen: etag, blocked: [] }, signal);
    await api.as(owner).delete(`/v1/instances/${id}`);
    const { routes } = await held;
    assert.equal(
      routes.some((each) => each.instance_id === id),
      false,
    );
  });
});

const far = await listenToRemoteHosts(api);
const tls = new Agent({ connect: { ca: far.cert, checkServerIdentity: () => undefined } });
after(() => tls.destroy());
const { token } = await far.join('hostile', { cpus: '4', memory: '4096' });

const others = Object.values(ROUTES).flatMap(({ path, caller }) => (caller === 'host' ? [] : [path]));

/** Other ways to write a path that a server may take for the same: each letter encoded, capitals, slashes, dots, a query. */
function spellings(path: string): string[] {
  const encoded = Array.from(path.matchAll(/[a-z]/g), ({ index, 0: letter }) => {
    const code = `%${letter.charCodeAt(0).toString(16)}`;
    return path.slice(0, index) + code + path.slice(index + 1);
  });
  const slashes = [`/${path}`, `${path}/`, path.replace('v1/', 'v1//'), path.replace('v1/', 'v1/./')];
  return [path, ...encoded, ...slashes, path.toUpperCase(), `${path}?a=b`, `${path};a`];
}

/** With a body that passes no check: who may not call learns nothing of it. */
async function statusOf(path: string): Promise<number> {
  const { statusCode, body } = await request(`${far.origin}${path}`, {
    method: 'POST',
    dispatcher: tls,
    headers: {
      ...{ authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      [PROTOCOL_HEADER]: String(AGENT_PROTOCOL),
    },
    body: '[]',
  });
  await body.dump();
  return statusCode;
}

test('its own calls are served', async () => {
  assert.equal(await statusOf(ROUTES.poll.path), 400);
});

for (const path of others) {
  test(`${path} is refused`, async () => {
    for (const spelt of spellings(path)) {
      const status = await statusOf(spelt);
      assert([401, 404].includes(status), `${spelt}: ${status}`);
    }
  });
}
