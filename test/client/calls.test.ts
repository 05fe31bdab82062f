/** Aborts, waits and live streams of the TypeScript client. What all clients do is in same-calls and bad-network. */
import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import { Berth, type Event, VmWaitError } from '../../client/src/berth.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { FailingProxy } from '../support/failing-proxy.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();

const proxy = await FailingProxy.before(api.origin);
const { url } = proxy;
beforeEach(() => proxy.reset());

async function somebody(): Promise<{ berth: Berth; who: Awaited<ReturnType<typeof api.person>> }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { berth: new Berth({ url, token: key }), who };
}
test('the address of a WebSocket is that of its instance alone', () => {
  const { instances } = new Berth({ url });
  assert.match(instances.forward('a/b', 80).url, /\/v1\/instances\/a%2Fb\/vm\/forward\?port=80$/);
  for (const id of ['.', '..', '']) {
    assert.throws(() => instances.forward(id, 80), /^TypeError: id must be an id or a name/);
    assert.throws(() => instances.attach('a', id, 0), /^TypeError: exec_id must be an id or a name/);
  }
});

describe('an abort', () => {
  test('ends the wait between two attempts', async () => {
    const { berth } = await somebody();
    const aborter = new AbortController();
    proxy.reset([{ status: 503, code: 'UNAVAILABLE', retry_after: '29' }]);
    const call = berth.call('listImages', {}, { signal: aborter.signal });
    setImmediate(() => aborter.abort(new Error('enough')));
    await assert.rejects(call, /enough/);
  });

  test('while a response is read is thrown as an abort, also for a request that is never retried', async () => {
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
    proxy.reset(['begun']);
    const path = { id };
    await assert.rejects(
      berth.call('execInVm', { path, body: { command: ['true'] } }, { signal: aborter.signal }),
      { message: 'enough' },
    );
    assert.equal(proxy.seen.length, 1);
  });
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
  proxy.cut();
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
