/** A hostile host, with a token, can do nothing to an instance that it once ran and that is now elsewhere. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once as eventOnce } from 'node:events';
import { after, before, describe, test } from 'node:test';
import { Agent, request } from 'undici';
import { ControlPlaneUnavailable } from '../../src/protocol/client.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import type { SegmentRef } from '../../src/protocol/types.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import {
  FACTS,
  FLUSH_WORK,
  HOST_KEY,
  type ScriptedAgent,
  SSH_ADDRESS,
  segmentOf,
} from '../support/scripted-agent.ts';
import { stateOf } from '../support/states.ts';

const api = await apiForFile();
const { db, agent } = api;
const owner = await api.person();
const client = api.as(owner);
const far = await listenToRemoteHosts(api);
const tls = new Agent({ connect: { ca: far.cert, checkServerIdentity: () => undefined } });
after(() => tls.destroy());

let hostile: ScriptedAgent;
let token: string;
let instance: InstanceOut;
/** Of the VM that it had, and of the one that runs now on this machine. */
let once: Known;
let now: Known;
interface Known {
  readonly vm_id: string;
  readonly epoch: number;
}
let flush_id: string;
let call_id: string;

const MIB = 1024;
const SCRIPT = '#!/bin/sh\necho secret';
const VERSION = 'b'.repeat(64);

async function say(path: string, body: unknown, protocol: number | null = AGENT_PROTOCOL) {
  const answer = await request(`${far.origin}${path}`, {
    method: 'POST',
    dispatcher: tls,
    headers: {
      ...{ authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      ...(protocol === null ? {} : { [PROTOCOL_HEADER]: String(protocol) }),
    },
    body: JSON.stringify(body),
  });
  return { status: answer.statusCode, headers: answer.headers, body: await answer.body.json() };
}

before(async () => {
  ({ agent: hostile, token } = await far.join('hostile', { cpus: '64', memory: '4096' }));
  await hostile.connect({ ...FACTS, memory_mib: 4096 * MIB });
  instance = await api.instance(owner, { user_data: SCRIPT });
  await client.post(`/v1/instances/${instance.id}/vm`);
  once = await hostile.assigned(instance.id);
  await hostile.ready(instance.id);
  await client.delete(`/v1/instances/${instance.id}/vm`);
  await hostile.assigned(instance.id, 'it is to stop', ({ desired }) => desired === 'stopped');
  await hostile.stopped(instance.id);
  await db.updateTable('hosts').set({ cordoned: true }).where('name', '=', 'hostile').execute();
  await client.post(`/v1/instances/${instance.id}/vm`);
  now = await agent.assigned(instance.id);
  await agent.ready(instance.id);
  assert.equal((await stateOf(api, owner, instance.id)).host_id, api.host_id);
  void client.post(`/v1/instances/${instance.id}/vm/flush`).catch(() => undefined);
  flush_id = await agent.askedToFlush(instance.id);
  const asked = ask();
  call_id = (await agent.nextCall('console_log')).id;
  asked.catch(() => undefined);
});

/** A call that waits for the host that has the instance. */
const ask = () => {
  const call = { kind: 'console_log', instance_id: instance.id, max_bytes: 10 } as const;
  return api.context.host_calls.ask(api.host_id, call, 300_000, new AbortController().signal);
};

/** All that the database has of the instance, as text. */
async function everything(): Promise<string> {
  const of = (
    table:
      | 'vms'
      | 'disks'
      | 'generations'
      | 'flushes'
      | 'memory_images'
      | 'data_keys'
      | 'user_data'
      | 'metric_samples'
      | 'denied_destinations',
  ) => db.selectFrom(table).selectAll().where('instance_id', '=', instance.id).execute();
  const rows = [];
  for (const table of [
    'vms',
    'disks',
    'generations',
    'flushes',
    'memory_images',
    'data_keys',
    'user_data',
    'metric_samples',
    'denied_destinations',
  ] as const)
    rows.push([table, await of(table)]);
  const events = await db
    .selectFrom('events')
    .select('type')
    .where('instance_id', '=', instance.id)
    .execute();
  const keys = await db
    .selectFrom('segment_holders')
    .selectAll()
    .where('instance_id', '=', instance.id)
    .execute();
  return JSON.stringify([rows, events, keys, await db.selectFrom('image_versions').selectAll().execute()]);
}

const FENCED = { outcome: 'fenced' };
const SPREAD = { mean: 1, min: 0, max: 2 };
const REASON = { code: 'vm_died', message: 'It died.' };

/** For each call what it says about the VM `vm`, and what it is answered. `null`: it names no instance. */
const CASES: Record<keyof typeof ROUTES, ((vm: Known) => { body: unknown; answer: unknown }) | null> = {
  join: null,
  rotate: null,
  lease: null,
  weaknesses: null,
  poll: null,
  objectStore: null,
  calls: null,
  routes: null,
  wake: null,
  activity: null,
  httpRoutes: null,
  authoriseHttp: null,
  redeemHttpTicket: null,
  reportHttp: null,
  openPort: null,
  peerTake: null,
  peerConfirm: null,
  peerAnswer: null,
  peerFailTaken: null,
  findImage: null,
  heartbeat: () => {
    const root = { used_bytes: 99, total_bytes: 100 };
    const disks = [{ instance_id: instance.id, dirty_bytes: 12_345, root }];
    return { body: { facts: FACTS, disks }, answer: undefined };
  },
  report: (vm) => ({
    body: { ...vm, observed: { kind: 'failed', reason: REASON, guest_ran: false } },
    answer: FENCED,
  }),
  flush: () => ({
    body: { flush_id, state: 'done', result: { ...FLUSH_WORK, commit_id: randomUUID() } },
    answer: FENCED,
  }),
  flushFailure: (vm) => ({ body: { ...vm, error: REASON }, answer: FENCED }),
  keys: (vm) => ({ body: { ...vm, applied_keys: [HOST_KEY.fingerprint] }, answer: FENCED }),
  minutes: () => {
    const none = { memory_used: null, memory_host: null, disk_read: null, disk_written: null };
    const spreads = { cpu: SPREAD, ...none, network_received: null, network_sent: null, dirty: SPREAD };
    const minutes = [{ instance_id: instance.id, at: new Date().toISOString(), spreads }];
    return { body: { minutes }, answer: FENCED };
  },
  denied: () => {
    const tried = { name: 'evil.example', address: null, port: null, count: 1 };
    const denials = [{ instance_id: instance.id, at: new Date().toISOString(), ...tried }];
    return { body: { denials }, answer: FENCED };
  },
  execs: () => {
    const end = { state: 'exited', exit_code: 0, signal: null, timed_out: false };
    const ended = { ...end, ended_at: new Date().toISOString() };
    const execs = [{ instance_id: instance.id, exec_id: newId('exec'), output_bytes: 1, end: ended }];
    return { body: { execs }, answer: FENCED };
  },
  logins: (vm) => ({ body: { ...vm, fingerprints: [HOST_KEY.fingerprint] }, answer: FENCED }),
  commit: (vm) => {
    const about = { instance_id: instance.id, ...vm, generation: 1, image_version: VERSION, dirty_bytes: 1 };
    const ids = { commit_id: randomUUID(), parent_id: randomUUID() };
    const segments = [segmentOf(instance.id, vm.epoch, 1)];
    const answer = { outcome: 'fenced', why: 'another VM has the disk' };
    return { body: { ...about, ...ids, segments, consistency: 'crash' }, answer };
  },
  lineage: ({ vm_id }) => {
    const body = { instance_id: instance.id, vm_id, generation: 0, commit_id: randomUUID() };
    // Of the VM that it had it hears this much: whether the disk has moved on, so that it lets go of its overlay.
    return { body, answer: { known: false, continues: vm_id === once.vm_id } };
  },
  unknownVm: ({ vm_id }) => ({
    body: { instance_id: instance.id, vm_id },
    answer: { outcome: 'ignored' },
  }),
  bootOrder: ({ epoch }) => ({ body: { instance_id: instance.id, epoch, blocks: [1] }, answer: FENCED }),
  userData: ({ vm_id }) => ({ body: { vm_id }, answer: { script: null } }),
  userDataGiven: ({ vm_id }) => ({ body: { vm_id }, answer: FENCED }),
  head: () => ({ body: { instance_id: instance.id }, answer: { outcome: 'elsewhere' } }),
  dataKeys: (vm) => ({ body: { instance_id: instance.id, ...vm }, answer: FENCED }),
  offerImages: () => {
    const images = [{ id: 'debian-12', version: VERSION, recipe: 'mine', needed: true }];
    return { body: { images }, answer: { verdicts: ['unneeded'] } };
  },
  registerImage: () => {
    const image = { id: 'debian-12', version: VERSION, recipe: 'mine', index_sha256: VERSION };
    return { body: { ...image, size_bytes: 1, stored_bytes: 1, newest: true }, answer: FENCED };
  },
  objectPermissions: ({ epoch }) => {
    const disk = `disks/${instance.id}`;
    const wrote = { size_bytes: 1, sha256: VERSION };
    const objects = [
      { method: 'GET', key: `${disk}/seg/${epoch}/1-00000000-0` },
      { method: 'PUT', key: `${disk}/seg/${epoch}/1-00000000-0`, ...wrote },
      { method: 'HEAD', key: `${disk}/map/1-00000000` },
      { method: 'PUT', key: `${disk}/mem/${epoch}-00000000/0`, ...wrote },
    ];
    return { body: { objects }, answer: { permissions: objects.map(() => null) } };
  },
  answerCall: () => ({ body: { id: call_id, answer: { result: { text: 'lies' } } }, answer: FENCED }),
};

describe('calls about an instance that runs elsewhere', () => {
  for (const [name, about] of Object.entries(CASES)) {
    if (about === null) continue;
    test(`${name}: returns and changes nothing, with the ids of its own old VM or of the new one`, async () => {
      const before_it = await everything();
      for (const { vm_id, epoch } of [once, now]) {
        const { body, answer } = about({ vm_id, epoch });
        const said = await say(ROUTES[name as keyof typeof ROUTES].path, body);
        assert.equal(said.status, 200, JSON.stringify(said.body));
        if (answer !== undefined) assert.deepEqual(said.body, answer);
        assert(!JSON.stringify(said.body).includes('secret'));
      }
      assert.equal(await everything(), before_it);
    });
  }

  test('poll, calls: return nothing of it', async () => {
    const { assignments } = await hostile.client.poll({ seen: null }, AbortSignal.timeout(10_000));
    assert.deepEqual(assignments, []);
    const asked = ask();
    const waits = hostile.client.calls({ fresh: true }, AbortSignal.timeout(100));
    await assert.rejects(waits, ControlPlaneUnavailable, 'in vain');
    const { id } = await agent.nextCall('console_log');
    const stream = await hostile.client.openConsole(id);
    await eventOnce(stream, 'close');
    await agent.client.answerCall({ id, answer: { result: { text: 'the truth' } } });
    assert.deepEqual(await asked, { text: 'the truth' });
  });

  test('the token of a host on another machine is refused on this machine’s socket', async () => {
    const answer = await fetch(`${api.internal_origin}${ROUTES.routes.path}`, {
      method: 'POST',
      headers: {
        ...{ authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        [PROTOCOL_HEADER]: String(AGENT_PROTOCOL),
      },
      body: JSON.stringify({ seen: null, blocked: [] }),
    });
    assert.equal(answer.status, 401);
    await answer.text();
  });
});

describe('calls about its own instance', () => {
  test('refuse objects of another instance, placement or generation, duplicates, and more than the disk holds', async () => {
    const { id } = await api.instance(owner);
    await client.post(`/v1/instances/${id}/vm`);
    const { epoch } = await agent.assigned(id);
    await agent.ready(id);
    const own = segmentOf(id, epoch, 1);
    const wrong: Record<string, readonly SegmentRef[]> = {
      'another instance': [segmentOf(instance.id, epoch, 1)],
      'another placement': [segmentOf(id, epoch - 1, 1)],
      'another generation': [segmentOf(id, epoch, 2)],
      'a path that leads elsewhere': [
        { ...own, key: `disks/${id}/seg/../../${instance.id}/seg/1/1-00000000-0` },
      ],
      'the mark of the store': [{ ...own, key: 'berth-store' }],
      'the same twice': [own, own],
      'a size below nothing': [{ ...own, size_bytes: -1 }],
      'more blocks than a segment has': [{ ...own, entries: 20_000 }],
      'more blocks than the disk has': Array.from({ length: 40 }, (_, i) => ({
        ...segmentOf(id, epoch, 1, i.toString(16).padStart(8, '0')),
        entries: 16_384,
      })),
    };
    for (const [what, segments] of Object.entries(wrong))
      await assert.rejects(agent.commit(id, 1, { segments }), /with 400/, what);
    assert.equal((await stateOf(api, owner, id)).disk.generation, 0);
    assert.equal((await agent.commit(id, 1)).outcome, 'committed');
  });

  test('refuse memory of another instance, and under another key than its own for memory', async () => {
    const { id } = await api.instance(owner);
    await client.post(`/v1/instances/${id}/vm`);
    const { epoch } = await agent.assigned(id);
    await agent.ready(id);
    await client.post(`/v1/instances/${id}/vm/suspend`);
    const head = await agent.client.head(id);
    const disk_key = head?.keys.find(({ use }) => use === 'disk')?.key_id ?? assert.fail();
    for (const change of [
      { key: `disks/${instance.id}/mem/${epoch}-0badcafe` },
      { key: `disks/${id}/mem/${epoch + 1}-0badcafe` },
      { epoch: epoch + 1 },
      { key_id: disk_key },
      { key_id: `dk_${'0'.repeat(32)}` },
    ])
      await assert.rejects(agent.suspended(id, change), /with 400/, JSON.stringify(change));
    assert.equal((await stateOf(api, owner, id)).state, 'suspending');
    assert.deepEqual(await agent.suspended(id), { outcome: 'accepted' });
  });

  test('refuse a report that it is removed before it is deleted', async () => {
    const { id } = await api.instance(owner);
    await client.post(`/v1/instances/${id}/vm`);
    await agent.assigned(id);
    assert.deepEqual(await agent.deleted(id), FENCED);
    assert.equal((await stateOf(api, owner, id)).state, 'starting');
  });

  test('refuse commits of a stopped VM, and return none of its keys', async () => {
    const { id } = await api.instance(owner);
    await client.post(`/v1/instances/${id}/vm`);
    const vm = await agent.assigned(id);
    await agent.ready(id);
    await agent.commit(id, 1);
    await client.delete(`/v1/instances/${id}/vm`);
    await agent.stopped(id);
    assert.equal((await agent.commit(id, 2)).outcome, 'fenced');
    assert.equal((await agent.commit(id, 1)).outcome, 'committed', 'what was is said again');
    const { vm_id, epoch } = vm;
    assert.deepEqual(await agent.client.dataKeys({ instance_id: id, vm_id, epoch }), FENCED);
    assert.deepEqual((await agent.client.head(id))?.keys, []);
    assert.equal((await agent.client.userData({ vm_id })).script, null);
  });
});

const NONSENSE = [[], 5, 'x', null, { more: 1 }, { instance_id: '../x', vm_id: 1, facts: 5, images: 5 }];
const beat = async (change: object, disks: object[] = []) =>
  (await say(ROUTES.heartbeat.path, { facts: { ...FACTS, ...change }, disks })).status;

test('nonsense is 400 on every call, changes nothing, and affects nobody', async () => {
  const before_it = await everything();
  for (const { path, caller } of Object.values(ROUTES)) {
    // A join takes another bearer than the others.
    if (caller !== 'host' || path === ROUTES.join.path) continue;
    for (const body of NONSENSE)
      assert.equal((await say(path, body)).status, 400, `${path} ${JSON.stringify(body)}`);
  }
  for (const change of [
    { images: 5 },
    { images: [{ id: 'x' }] },
    { images: [{ id: '../x', version: VERSION }] },
    { images: Array.from({ length: 1_001 }, () => ({ id: 'x', version: VERSION })) },
    { memory_mib: 9e9 },
    { memory_mib: 1.5 },
    { cpus: 0 },
    { accelerator: 'none' },
    { accelerator_reason: 'x'.repeat(301) },
    { object_store_problem: 'a\u0000b' },
    { object_store_problem: '\u001b[31m' },
  ])
    assert.equal(await beat(change), 400);
  const about = { instance_id: newId('inst') };
  for (const dirty_bytes of [-1, 1e300, null, '1'])
    assert.equal(await beat({}, [{ ...about, dirty_bytes }]), 400);
  const running = { kind: 'running', reboots: 0, host_keys: [], applied_keys: [], recovered: null };
  for (const ssh_address of ['10.0.0.1:22', '127.0.0.1:22\r\n', 'evil', '']) {
    const body = { ...once, observed: { ...running, ssh_address } };
    assert.equal((await say(ROUTES.report.path, body)).status, 400);
  }
  const good = { vm_id: once.vm_id, epoch: once.epoch, observed: { ...running, ssh_address: SSH_ADDRESS } };
  assert.equal((await say(ROUTES.report.path, good)).status, 200);
  assert.equal(await everything(), before_it);
});

test('GET /v1/images works whatever a host has reported', async () => {
  const images = [{ id: 'made-up', version: VERSION }];
  assert.equal(await beat({ images }), 200);
  const listed = async () => {
    const answer = await client.get<{ data: { id: string }[] }>('/v1/images');
    assert.equal(answer.status, 200, answer.text);
    return answer.body.data.map(({ id }) => id);
  };
  assert.deepEqual(await listed(), ['debian-12'], 'another machine’s word makes no image');
  for (const facts of ['{"images":5}', '5', '{}', '[]', '{"images":[{"id":5}],"memory_mib":9e9}']) {
    await db.updateTable('hosts').set({ facts }).where('name', '=', 'hostile').execute();
    assert.deepEqual(await listed(), ['debian-12']);
    assert.equal((await api.client.get('/readyz')).status, 200, 'nor is anything else lost by it');
  }
});
