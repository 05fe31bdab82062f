/** What the client does when the way to the server is bad: before it a small proxy that fails as it is told to. */
import assert from 'node:assert/strict';
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, beforeEach, describe, test } from 'node:test';
import { Berth, BerthConnectionError, BerthError, type Event, VmWaitError } from '../../client/src/berth.ts';
import { newId } from '../../src/lib/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();

/**
 * What becomes of the next requests, in order; after them each passes. `lost`: it is done, its answer is not seen.
 * `begun`: its answer begins, and does not end.
 */
type Fate = 'refused' | 'lost' | 'begun' | { status: number; code: string; retry_after?: string };
let fates: Fate[] = [];
let seen: { method: string; key: string | undefined }[] = [];
beforeEach(() => {
  fates = [];
  seen = [];
});

function pass(request: IncomingMessage, response: ServerResponse, lost: boolean): void {
  const { method, headers, url } = request;
  const onward = httpRequest(api.origin + url, { method, headers }, (answer) => {
    if (lost) return void answer.resume().once('end', () => response.destroy());
    response.writeHead(answer.statusCode ?? 500, answer.headers);
    answer.pipe(response);
  });
  response.once('close', () => onward.destroy());
  onward.on('error', () => response.destroy());
  request.pipe(onward);
}

const proxy = createServer((request, response) => {
  seen.push({ method: request.method ?? '', key: request.headers['idempotency-key'] as string | undefined });
  const fate = fates.shift();
  if (fate === 'refused') return void response.destroy();
  if (fate === undefined || fate === 'lost') return pass(request, response, fate === 'lost');
  if (fate === 'begun') return void response.writeHead(200).flushHeaders();
  const { status, code, retry_after } = fate;
  response.writeHead(status, {
    'content-type': 'application/json',
    ...(retry_after === undefined ? {} : { 'retry-after': retry_after }),
  });
  response.end(JSON.stringify({ error: { code, message: 'As told.', request_id: 'req_1' } }));
});
await new Promise<void>((listening) => proxy.listen(0, '127.0.0.1', listening));
const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
after(() => {
  proxy.closeAllConnections();
  proxy.close();
});

async function somebody(): Promise<{ berth: Berth; who: Awaited<ReturnType<typeof api.person>> }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { berth: new Berth({ url, token: key }), who };
}
async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}
async function failureOf(work: Promise<unknown>): Promise<BerthError> {
  const error = await work.then(
    () => assert.fail('it did not fail'),
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof BerthError, String(error));
  return error;
}

describe('repetition', () => {
  test('a create whose responses are lost is repeated with one Idempotency-Key, and creates one instance', async () => {
    const { berth } = await somebody();
    fates = ['lost', 'lost', 'refused'];
    const made = await berth.instances.create({ name: newName() });
    assert.equal(seen.length, 4);
    assert.equal(new Set(seen.map(({ key }) => key)).size, 1);
    assert.ok(seen[0]?.key);
    const made_ones = await all(berth.instances.list());
    assert.deepEqual(
      made_ones.map(({ id }) => id),
      [made.id],
    );
  });

  test('503 and 429 are retried; a quota, a conflict and a long Retry-After are not', async () => {
    const { berth } = await somebody();
    fates = [
      { status: 503, code: 'UNAVAILABLE', retry_after: '0' },
      { status: 429, code: 'RATE_LIMITED', retry_after: '0' },
    ];
    assert.deepEqual(await all(berth.instances.list()), []);
    assert.equal(seen.length, 3);
    for (const fate of [
      { status: 429, code: 'QUOTA_EXCEEDED' },
      { status: 409, code: 'CONFLICT' },
      { status: 503, code: 'UNAVAILABLE', retry_after: '3600' },
    ]) {
      seen = [];
      fates = [fate];
      const error = await failureOf(berth.instances.create({ name: newName() }));
      assert.deepEqual([error.status, error.code, error.request_id], [fate.status, fate.code, 'req_1']);
      assert.equal(error.retry_after_seconds, fate.retry_after === undefined ? null : 3600);
      assert.equal(seen.length, 1, fate.code);
    }
  });

  test('a request that is not safe to repeat is sent once', async () => {
    const { berth, who } = await somebody();
    const { id } = await api.instance(who);
    fates = ['lost'];
    await assert.rejects(berth.instances.change(id, { labels: { a: 'b' } }), BerthConnectionError);
    assert.equal(seen.length, 1);
  });

  test('after four retries the failure is thrown', async () => {
    const { berth } = await somebody();
    fates = Array.from({ length: 9 }, () => 'refused' as const);
    await assert.rejects(berth.call('listImages', {}), BerthConnectionError);
    assert.equal(seen.length, 5);
  });

  test('an abort ends the wait between two attempts', async () => {
    const { berth } = await somebody();
    const aborter = new AbortController();
    fates = [{ status: 503, code: 'UNAVAILABLE', retry_after: '29' }];
    const call = berth.call('listImages', {}, { signal: aborter.signal });
    setImmediate(() => aborter.abort(new Error('enough')));
    await assert.rejects(call, /enough/);
  });

  test('an abort while a response is read is thrown as an abort, also for a request that is never retried', async () => {
    const { who } = await somebody();
    const aborter = new AbortController();
    const berth = new Berth({
      url,
      token: who.session,
      fetch: async (...request) => {
        const response = await fetch(...request);
        setImmediate(() => aborter.abort(new Error('enough')));
        return response;
      },
    });
    const { id } = await api.instance(who);
    fates = ['begun'];
    const path = { id };
    await assert.rejects(
      berth.call('execInVm', { path, body: { command: ['true'] } }, { signal: aborter.signal }),
      { message: 'enough' },
    );
    assert.equal(seen.length, 1);
  });
});

test('errors carry code, status, details and the id of the request', async () => {
  const { berth } = await somebody();
  const bad = await failureOf(berth.instances.create({ name: 'Not A Name' }));
  assert.deepEqual([bad.status, bad.code], [400, 'INVALID_REQUEST']);
  assert.equal(bad.details[0]?.field, 'name');
  assert.match(bad.request_id ?? '', /^req_/);
  assert.equal((await failureOf(berth.instances.find('nothing'))).code, 'NOT_FOUND');
  const nobody = new Berth({ url, token: 'berth_live_wrong' });
  assert.equal((await failureOf(nobody.call('listImages', {}))).code, 'UNAUTHENTICATED');
});

test('a list is read over all of its pages, each item once', async () => {
  const { berth, who } = await somebody();
  const made = [];
  for (let count = 0; count < 5; count++) made.push((await api.instance(who)).id);
  const read = await all(berth.instances.list({ limit: 2 }));
  assert.deepEqual(read.map(({ id }) => id).toSorted(), made.toSorted());
  assert.equal(seen.filter(({ method }) => method === 'GET').length, 3);
});

test('waiting ends when the VM runs, and with its reason when it fails', async () => {
  const { berth, who } = await somebody();
  const { id } = await api.instance(who);
  const waiting = berth.vm(id).start();
  waiting.catch(() => undefined);
  await api.agent.assigned(id);
  await api.agent.ready(id);
  assert.equal((await waiting).vm.state, 'running');
  const down = berth.instances.waitFor(id, 'stopped');
  down.catch(() => undefined);
  await api.agent.failed(id);
  await assert.rejects(down, (error) => error instanceof VmWaitError && error.vm.state === 'failed');
});

test('events arrive live, and a cut connection loses or repeats none', async () => {
  const { berth, who } = await somebody();
  const idOf = ({ value }: IteratorResult<Event, void>) =>
    (value as Event).data['instance'] as { id: string };
  const aborter = new AbortController();
  const opened: (() => void)[] = [];
  const open = () => new Promise<void>((resolve) => opened.push(resolve));
  const first_open = open();
  const events = berth.events(
    { type: 'instance.created' },
    { signal: aborter.signal, onOpen: () => opened.shift()?.() },
  );
  const first = events.next();
  await first_open;
  // JSON leaves this as it is, and for `.` of a pattern it ends the line.
  const one = await api.instance(who, { labels: { note: 'first\u2028second' } });
  await raiseNotificationsOfEvents(api.db);
  assert.equal(idOf(await first).id, one.id);
  const second = events.next();
  proxy.closeAllConnections();
  const two = await api.instance(who);
  const three = await api.instance(who);
  await raiseNotificationsOfEvents(api.db);
  assert.equal(idOf(await second).id, two.id);
  assert.equal(idOf(await events.next()).id, three.id);
  const last = events.next();
  aborter.abort(new Error('enough'));
  await assert.rejects(last, /enough/);
});

test('a stream that resumes after an expired event says so', async () => {
  const { berth } = await somebody();
  const aborter = new AbortController();
  const { promise: told, resolve: onReset } = Promise.withResolvers<void>();
  const from = { last_event_id: newId('evt'), signal: aborter.signal, onReset };
  const first = berth.events({}, from).next();
  await told;
  aborter.abort(new Error('enough'));
  await assert.rejects(first, /enough/);
});
