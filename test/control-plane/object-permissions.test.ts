/** A host gets signed requests for the objects that it needs now, and a stolen credential of it gets nothing else out of the bucket. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import { Agent, request } from 'undici';
import { consumedKey } from '../../src/disk-format/memory-format.ts';
import { clientFor, PATIENCE } from '../../src/object-store/s3-requests.ts';
import { type S3Settings, S3Store } from '../../src/object-store/s3-store.ts';
import { RequestSigner } from '../../src/object-store/sign-request.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import type { ObjectRequest, SignedRequest } from '../../src/protocol/types.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { listenToRemoteHosts, type RemoteHosts } from '../support/remote-hosts.ts';
import { S3Server } from '../support/s3-server.ts';
import { FACTS, type ScriptedAgent, segmentOf } from '../support/scripted-agent.ts';
import { seededRandom } from '../support/seeded-random.ts';
import { asSigned, headersOf, type Sent, send, sha256, writing } from '../support/signed-requests.ts';

const ATTEMPTS = 1_000;
const SEED = Number(process.env['BERTH_TEST_SEED'] ?? 1);

const api = await apiForFile();
const { db, agent: local } = api;
const owner = await api.person();
const client = api.as(owner);

let server: S3Server;
let bucket: S3Settings;
let store: S3Store;
let far: RemoteHosts;
let tls: Agent;
let thief: ScriptedAgent;
let token: string;

before(async () => {
  server = await S3Server.start();
  bucket = await server.bucket();
  store = new S3Store(bucket);
  far = await listenToRemoteHosts(api, { sign: (wanted) => store.sign(wanted) });
  tls = new Agent({ connect: { ca: far.cert, checkServerIdentity: () => undefined } });
  ({ agent: thief, token } = await far.join('thief', { cpus: '64', memory: '4096' }));
  await thief.connect({ ...FACTS, memory_mib: 4 * FACTS.memory_mib });
  await setTheScene();
});
after(async () => {
  await tls?.destroy();
  store?.close();
  await server?.close();
});

/** With the stolen credential. */
async function ask(objects: readonly object[]) {
  const answer = await request(`${far.origin}${ROUTES.objectPermissions.path}`, {
    method: 'POST',
    dispatcher: tls,
    headers: {
      ...{ authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      [PROTOCOL_HEADER]: String(AGENT_PROTOCOL),
    },
    body: JSON.stringify({ objects }),
  });
  const body = (await answer.body.json()) as { permissions?: (SignedRequest | null)[] };
  return { status: answer.statusCode, permissions: body.permissions ?? [] };
}

async function permitted(object: ObjectRequest): Promise<SignedRequest> {
  const { permissions } = await ask([object]);
  return permissions[0] ?? assert.fail(`${object.method} ${object.key} is not permitted`);
}

/** Objects that the thief may not see, each with content of its own. */
const secrets = new Map<string, Buffer>();
async function secret(key: string): Promise<string> {
  const content = Buffer.from(`secret ${randomBytes(40).toString('hex')}`);
  await store.put(key, [content]);
  secrets.set(key, content);
  return key;
}

let own: { readonly instance: InstanceOut; readonly epoch: number };
const own_object = Buffer.from('the first generation of its own');
let shared: string;

async function startOn(which: 'thief' | 'local', instance: InstanceOut): Promise<number> {
  const only = which === 'thief' ? 'local' : 'thief';
  await db.updateTable('hosts').set({ cordoned: false }).where('name', '=', which).execute();
  await db.updateTable('hosts').set({ cordoned: true }).where('name', '=', only).execute();
  assert.equal((await client.post(`/v1/instances/${instance.id}/vm`)).status, 202);
  const agent = which === 'thief' ? thief : local;
  const { epoch } = await agent.assigned(instance.id);
  await agent.ready(instance.id);
  return epoch;
}

async function setTheScene(): Promise<void> {
  await store.put('berth-store', [Buffer.from('mark')]);
  const instance = await api.instance(owner);
  own = { instance, epoch: await startOn('thief', instance) };
  await thief.commit(instance.id, 1);
  await store.put(segmentOf(instance.id, own.epoch, 1).key, [own_object]);

  // It never had this one.
  const victim = await api.instance(owner);
  const epoch = await startOn('local', victim);
  await local.commit(victim.id, 1);
  await secret(segmentOf(victim.id, epoch, 1).key);
  await secret(segmentOf(victim.id, epoch, 2).key);
  await secret(`disks/${victim.id}/map/1-00000000`);

  // It had this one, which has moved since.
  const moved = await api.instance(owner);
  const before = await startOn('thief', moved);
  await thief.commit(moved.id, 1);
  await secret(segmentOf(moved.id, before, 1).key);
  assert.equal((await client.delete(`/v1/instances/${moved.id}/vm`)).status, 202);
  await thief.stopped(moved.id);
  const now = await startOn('local', moved);
  await local.commit(moved.id, 2);
  await secret(segmentOf(moved.id, now, 2).key);
  await secret(segmentOf(moved.id, before, 2).key);

  // It had this one, which is stopped.
  const stopped = await api.instance(owner);
  const ran = await startOn('thief', stopped);
  await thief.commit(stopped.id, 1);
  await secret(segmentOf(stopped.id, ran, 1).key);
  assert.equal((await client.delete(`/v1/instances/${stopped.id}/vm`)).status, 202);
  await thief.stopped(stopped.id);

  // This one sleeps elsewhere.
  const asleep = await api.instance(owner);
  await startOn('local', asleep);
  await client.post(`/v1/instances/${asleep.id}/vm/suspend`);
  const { key } = await local.memory(asleep.id);
  await local.suspended(asleep.id);
  await secret(`${key}/0`);
  await secret(consumedKey(key));

  // Its fork shares one object with this one, which has others.
  const parent = await api.instance(owner);
  const there = await startOn('local', parent);
  await local.commit(parent.id, 1);
  shared = segmentOf(parent.id, there, 1).key;
  await store.put(shared, [Buffer.from('shared')]);
  const forked = await client.post<InstanceOut>(`/v1/instances/${parent.id}/fork`, { name: 'the-fork' });
  assert.equal(forked.status, 201, forked.text);
  await local.commit(parent.id, 2);
  await secret(segmentOf(parent.id, there, 2).key);
  await startOn('thief', forked.body);

  await secret(`images/private/${'c'.repeat(64)}/index.json`);
  await secret('probe/0123456789abcdef01234567');
  await secret('backups/other');
}

/** Everything that was in the bucket and was not the thief's own. */
async function all(): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for await (const { key } of store.list('')) found.set(key, (await store.get(key)).toString());
  return found;
}

const ownKey = (generation: number, attempt: string) =>
  segmentOf(own.instance.id, own.epoch, generation, attempt).key;

describe('a host', () => {
  test('creates the objects of its next generation, exactly the bytes it named, and only once', async () => {
    const body = randomBytes(1_000);
    const key = ownKey(2, '00000001');
    const signed = await permitted(writing(key, body));
    assert(!JSON.stringify(signed).includes(bucket.secret_access_key ?? '?'));
    const put = asSigned('PUT', signed, body);
    assert.equal(headersOf(signed)['if-none-match'], '*');
    for (const name of ['if-none-match', 'content-length', 'x-amz-content-sha256'])
      assert.match(headersOf(signed)['authorization'] ?? '', new RegExp(`SignedHeaders=[^,]*\\b${name}\\b`));
    const { 'if-none-match': _, ...anyhow } = put.headers;
    assert.equal((await send({ ...put, headers: anyhow })).status, 403, 'not without its condition');
    const other = Buffer.from(body).fill(1);
    assert((await send({ ...put, body: other })).status >= 400, 'not other bytes');
    const longer = Buffer.alloc(100_000);
    const length = { 'content-length': String(longer.length) };
    assert.equal((await send({ ...put, headers: { ...put.headers, ...length }, body: longer })).status, 403);
    await assert.rejects(store.size(key), { name: 'ObjectNotFoundError' });
    assert.equal((await send(put)).status, 200);
    assert.equal((await send(put)).status, 412, 'it is there');
    assert((await store.get(key)).equals(body));
  });

  test('reads what its instances hold, also what a fork shares with its parent, and what it has just written', async () => {
    const reads = [
      [ownKey(1, '00000000'), own_object.toString()],
      [shared, 'shared'],
      ['berth-store', 'mark'],
    ] as const;
    for (const [key, content] of reads) {
      const signed = await permitted({ method: 'GET', key });
      assert.equal((await send(asSigned('GET', signed))).body.toString(), content);
      const head = await send(asSigned('HEAD', await permitted({ method: 'HEAD', key })));
      assert.equal(head.status, 200);
    }
    const range = asSigned('GET', await permitted({ method: 'GET', key: shared }));
    const part = await send({ ...range, headers: { ...range.headers, range: 'bytes=1-2' } });
    assert.equal(part.body.toString(), 'ha');
    await permitted({ method: 'GET', key: ownKey(2, '00000001') });
    await permitted({ method: 'GET', key: `disks/${own.instance.id}/mem/${own.epoch}-00000000/0` });
    await permitted({ method: 'GET', key: `images/debian-12/${'a'.repeat(64)}/index.json` });
  });

  test('says once who consumed the memory that its VM resumes from, in a few bytes, and of no other memory', async () => {
    const instance = await api.instance(owner);
    await startOn('thief', instance);
    await client.post(`/v1/instances/${instance.id}/vm/suspend`);
    const { key } = await thief.memory(instance.id);
    const consumed = consumedKey(key);
    const name = Buffer.from('the second start');
    const isPermitted = async (object: ObjectRequest) => (await ask([object])).permissions[0] !== null;
    assert.equal(await isPermitted(writing(consumed, name)), false, 'of memory that it saves');
    await thief.suspended(instance.id);
    assert.equal(await isPermitted(writing(consumed, name)), false, 'of a VM that is not started');
    assert.equal((await client.post(`/v1/instances/${instance.id}/vm`)).status, 202);
    await thief.assigned(instance.id);
    assert.equal(await isPermitted(writing(consumed, Buffer.alloc(1_000, 1))), false, 'not much');
    const put = asSigned('PUT', await permitted(writing(consumed, name)), name);
    assert.equal((await send(put)).status, 200);
    assert.equal((await send(put)).status, 412, 'once');
    const read = asSigned('GET', await permitted({ method: 'GET', key: consumed }));
    assert.equal((await send(read)).body.toString(), 'the second start');
    await thief.ready(instance.id, null, [], true);
    assert.equal(await isPermitted(writing(consumed, name)), false, 'of memory that is used');
    assert.equal(await isPermitted({ method: 'GET', key: consumed }), false);
  });

  test('cannot let the store copy another object into its own', async () => {
    const theirs = [...secrets.keys()][0] ?? assert.fail();
    const range = { 'x-amz-copy-source-range': 'bytes=0-19' };
    const mine = Buffer.alloc(20, 'mine');
    // The store reads no body when it copies, so an empty one would do.
    const none = Buffer.alloc(0);
    for (const [i, [body, hashed, more]] of [
      ...[[mine, mine, {}] as const, [mine, mine, range] as const, [mine, none, {}] as const],
      ...[[mine, none, range] as const, [none, none, {}] as const, [none, none, range] as const],
    ].entries()) {
      const key = ownKey(2, `0000001${i}`);
      const { permissions } = await ask([{ ...writing(key, body), sha256: sha256(hashed) }]);
      if (!permissions[0]) continue;
      const put = asSigned('PUT', permissions[0], body);
      const source = { 'x-amz-copy-source': `/${bucket.bucket}/${theirs}`, ...more };
      const answer = await send({ ...put, headers: { ...put.headers, ...source } });
      assert(answer.status >= 400, `it was copied: ${answer.status} ${JSON.stringify({ more })}`);
      await assert.rejects(store.size(key), { name: 'ObjectNotFoundError' });
    }
  });

  test('a signed request expires', async () => {
    const old = clientFor(bucket, PATIENCE);
    Object.assign(old.config, { systemClockOffset: -15.5 * 60_000 });
    const key = ownKey(1, '00000000');
    const expired = await new RequestSigner(old, bucket.bucket).sign({ method: 'GET', key });
    const answer = await send(asSigned('GET', expired));
    assert.equal(answer.status, 403);
    assert.match(answer.body.toString(), /RequestTimeTooSkewed/);
    old.destroy();
  });
});

describe(`${ATTEMPTS} requests with the stolen credential of a host (BERTH_TEST_SEED=${SEED})`, () => {
  const random = seededRandom(SEED);
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)] as T;
  const forbidden = () => pick([...secrets.keys()]);
  const METHODS = ['GET', 'HEAD', 'PUT', 'DELETE', 'POST'];

  /** A key that leads to another's object, or nearly. */
  function trick(): string {
    const theirs = forbidden();
    const mine = `disks/${own.instance.id}`;
    return pick([
      () => theirs,
      () => `${mine}/../../${theirs}`,
      () => `${mine}/seg/${own.epoch}/../../../../${theirs}`,
      () => theirs.replaceAll('/', '%2F'),
      () => theirs.replaceAll('/', '//'),
      () => `./${theirs}`,
      () => `/${theirs}`,
      () => `${theirs}/`,
      () => `${theirs}\u0000`,
      () => `${theirs}\n`,
      () => `${theirs}?x=${mine}`,
      () => encodeURIComponent(theirs),
      () => `%2e%2e/${theirs}`,
      () => theirs.toUpperCase(),
      () => mine.concat('/', theirs),
      () => segmentOf(own.instance.id, own.epoch - 1, 1).key,
      () => segmentOf(own.instance.id, own.epoch + 1, 2).key,
      () => segmentOf(own.instance.id, own.epoch, pick([0, 3, 4, 1_000_000])).key,
      () => ownKey(2, '00000000').replace('/seg/', '/seg/0'),
      () => ownKey(2, '00000000').replace(/-0$/, '-00'),
      () => `${ownKey(2, '00000000')}.bak`,
      () => `${mine}/map/2-00000000`,
      () => `${mine}/`,
      () => 'berth-store/',
      () => '',
    ])();
  }

  /** Wants what it may not have. */
  async function wants(): Promise<string> {
    const key = trick();
    const reading = { method: pick(['GET', 'HEAD']), key };
    const forged = { method: 'PUT', key, size_bytes: 6, sha256: sha256(Buffer.from('forged')) };
    const about = pick<object>([
      ...[reading, reading, forged, forged],
      { ...forged, method: pick(METHODS) },
      { ...forged, size_bytes: pick([-1, 2 ** 40, 0.5]) },
      { ...reading, instance_id: own.instance.id },
    ]);
    const { status, permissions } = await ask([about]);
    assert(status === 200 || status === 400, `${status}`);
    assert(
      permissions.every((each) => each === null),
      `${JSON.stringify(about)} was permitted`,
    );
    return status === 400 ? 'refused by the schema' : 'not permitted';
  }

  /** Bends a request that it may have. */
  async function bends(): Promise<string> {
    const body = Buffer.from(pick([...secrets.values()]).map((byte) => byte ^ 1));
    const key = ownKey(
      2,
      Math.floor(random() * 2 ** 32)
        .toString(16)
        .padStart(8, '0'),
    );
    const wanted = pick<ObjectRequest>([
      { method: 'GET', key: ownKey(1, '00000000') },
      { method: 'HEAD', key: shared },
      { method: 'GET', key },
      writing(key, body),
    ]);
    const good = asSigned(wanted.method, await permitted(wanted), wanted.method === 'PUT' ? body : undefined);
    const theirs = forbidden();
    const { origin } = new URL(good.url);
    const at = (path: string) => `${origin}/${bucket.bucket}${path}`;
    const also = (headers: Record<string, string>): Sent => ({
      ...good,
      headers: { ...good.headers, ...headers },
    });
    const source = { 'x-amz-copy-source': `/${bucket.bucket}/${theirs}` };
    const bent = pick<() => Sent>([
      () => ({ ...good, url: at(`/${theirs}`) }),
      () => ({ ...good, url: at(`/${wanted.key}/../../../../../${theirs}`) }),
      () => ({ ...good, url: at(`/${theirs.replaceAll('/', '%2F')}`) }),
      () => ({ ...good, url: at('?list-type=2&prefix=disks/') }),
      () => ({ ...good, url: at('') }),
      () => ({ ...good, url: origin }),
      () => ({ ...good, url: `${good.url}&versionId=null` }),
      () => ({ ...good, url: at(`/${wanted.key}?uploads`), method: 'POST' }),
      () => ({ ...good, url: at('?delete'), method: 'POST', body: Buffer.from(deleting(theirs)) }),
      () => ({ ...good, method: pick(METHODS.filter((each) => each !== wanted.method)) }),
      () => ({ ...good, url: at(`/${theirs}`), method: pick(METHODS) }),
      () => also({ ...source }),
      () => also({ ...source, 'x-amz-copy-source-range': 'bytes=0-9' }),
      () => ({ ...also({ ...source, 'x-amz-metadata-directive': 'REPLACE' }), method: 'PUT' }),
      () => also({ 'x-amz-acl': 'public-read' }),
      () => also({ 'if-none-match': pick(['', 'x', '"*"']) }),
      () => also({ 'content-length': String(body.length * 2) }),
      () => also({ 'x-amz-content-sha256': 'UNSIGNED-PAYLOAD' }),
      () => also({ 'x-amz-date': '20300101T000000Z' }),
      () => also({ host: 'elsewhere.example' }),
    ])();
    const answer = await send(bent);
    for (const [name, content] of secrets)
      assert(!answer.body.includes(content), `${name} was read: ${JSON.stringify({ wanted, bent })}`);
    // Whatever it could write that way, it can read.
    const read = await send(asSigned('GET', await permitted({ method: 'GET', key })));
    for (const [name, content] of secrets)
      assert(!read.body.includes(content), `${name} was copied: ${JSON.stringify({ wanted, bent })}`);
    return `${answer.status < 400 ? 'no more than it may' : 'refused by the store'}`;
  }

  const deleting = (key: string) => `<Delete><Object><Key>${key}</Key></Object></Delete>`;

  test('read, replace and delete nothing of an instance that it does not run', async () => {
    const before_it = await all();
    const counts = new Map<string, number>();
    for (let i = 0; i < ATTEMPTS; i++) {
      const outcome = await (random() < 0.5 ? wants() : bends());
      counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
    }
    const after_it = await all();
    for (const [key, content] of before_it) assert.equal(after_it.get(key), content, `${key} was changed`);
    const mine = `disks/${own.instance.id}/seg/${own.epoch}/2-`;
    const made = [...after_it.keys()].filter((key) => !before_it.has(key));
    assert.deepEqual(
      made.filter((key) => !key.startsWith(mine)),
      [],
    );
    for (const outcome of ['refused by the schema', 'not permitted', 'refused by the store'])
      assert((counts.get(outcome) ?? 0) > ATTEMPTS / 20, JSON.stringify([...counts]));
  });

  test('not even with a token that has ended', async () => {
    await db.updateTable('hosts').set({ removed_at: new Date() }).where('name', '=', 'thief').execute();
    assert.equal((await ask([{ method: 'GET', key: ownKey(1, '00000000') }])).status, 401);
  });
});
