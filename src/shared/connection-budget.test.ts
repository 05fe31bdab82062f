import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';
import {
  type BoundConnection,
  ConnectionBudget,
  filesForConnections,
  openFilesLimit,
  sourceOf,
} from './connection-budget.ts';

let ports = 1_024;

class Connection extends EventEmitter implements BoundConnection {
  readonly remoteAddress: string;
  readonly remotePort = ports++;
  readonly localAddress = '127.0.0.1';
  readonly localPort = 80;
  is_open = true;

  constructor(address: string) {
    super();
    this.remoteAddress = address;
  }

  /** The event comes later, as a socket's does. */
  destroy(): void {
    this.is_open = false;
    setImmediate(() => this.emit('close'));
  }
}

function listener(options: { most: number; per_source?: number; proxy?: string }) {
  const budget = new ConnectionBudget({
    most: options.most,
    per_source: options.per_source ?? options.most,
    isProxy: (address) => address === options.proxy,
  });
  const come = (address: string, count = 1) =>
    Array.from({ length: count }, () => {
      const connection = new Connection(address);
      budget.admit(connection);
      return connection;
    });
  const open = (all: readonly Connection[]) => all.filter(({ is_open }) => is_open).length;
  return { budget, come, open };
}

test('an address at its bound loses its oldest idle connection for a new one, and nobody else loses any', () => {
  const { budget, come, open } = listener({ most: 100, per_source: 10 });
  const others = come('192.0.2.1', 3);
  const theirs = come('192.0.2.2', 10);
  const [oldest, second] = theirs;
  budget.use(oldest ?? assert.fail());
  const [newest] = come('192.0.2.2');
  assert.deepEqual([oldest?.is_open, second?.is_open, newest?.is_open], [true, false, true]);
  assert.equal(open(others), 3);
});

test('an address whose connections are all in use gets no more than its bound', () => {
  const { budget, come, open } = listener({ most: 100, per_source: 10 });
  for (const each of come('192.0.2.2', 10)) budget.use(each);
  assert.equal(open(come('192.0.2.2', 5)), 0);
  assert.equal(open(come('192.0.2.3', 5)), 5);
});

test('a connection is idle again once all that it was used for is over', () => {
  const { budget, come } = listener({ most: 100, per_source: 1 });
  const [first] = come('192.0.2.2');
  const ends = [budget.use(first ?? assert.fail()), budget.use(first ?? assert.fail())];
  ends[0]?.();
  ends[0]?.();
  assert.equal(come('192.0.2.2')[0]?.is_open, false);
  ends[1]?.();
  assert.equal(come('192.0.2.2')[0]?.is_open, true);
  assert.equal(first?.is_open, false);
});

test('addresses that together hold all connections do not shut others out, idle or not', () => {
  for (const is_used of [false, true]) {
    const { budget, come, open } = listener({ most: 100 });
    const held = ['192.0.2.1', '192.0.2.2', '192.0.2.3', '192.0.2.4'].flatMap((each) => come(each, 25));
    if (is_used) for (const each of held) budget.use(each);
    assert.equal(open(held), 100);
    const others = Array.from({ length: 10 }, (_, at) => come(`198.51.100.${at}`, 1)).flat();
    assert.equal(open(others), 10);
    assert.equal(open(held), 90, 'there are no more than the bound');
  }
});

test('no address has more than half of a small bound', () => {
  const { come, open } = listener({ most: 20, per_source: 2_000 });
  const theirs = come('192.0.2.1', 30);
  assert.equal(open(theirs), 10);
  assert.equal(theirs.at(-1)?.is_open, true, 'the oldest went');
});

test('a proxy has no bound of its own, and loses no connection in use', () => {
  const { budget, come, open } = listener({ most: 40, per_source: 5, proxy: '10.0.0.1' });
  const proxied = come('10.0.0.1', 40);
  assert.equal(open(proxied), 40);
  for (const each of proxied.slice(0, 39)) budget.use(each);
  assert.equal(open(come('192.0.2.1', 1)), 1);
  assert.equal(proxied.at(-1)?.is_open, false, 'its only idle one');
  assert.equal(open(proxied), 39);
  assert.equal(open(come('10.0.0.1', 1)), 1, 'in place of the idle one of another');
});

test('connections in use stay while many others are idle, from however many addresses they are', () => {
  const { budget, come, open } = listener({ most: 100, per_source: 50 });
  const used = come('192.0.2.1', 20);
  for (const each of used) budget.use(each);
  for (let at = 0; at < 300; at++) come(`2001:db8:1:${at.toString(16)}::1`, 1);
  assert.equal(open(used), 20);
});

test('the source with the most idle connections loses its oldest, with many sources as fast as with few', () => {
  const { come, open } = listener({ most: 20_000, per_source: 10_000 });
  const [first] = come('192.0.2.1', 1);
  const many = come('192.0.2.2', 1_000);
  for (let at = 0; at < 19_500; at++) come(`2001:db8:1:${at.toString(16)}::1`, 1);
  assert.equal(first?.is_open, true);
  assert.equal(open(many), 499);
  assert.equal(many.at(-1)?.is_open, true, 'the oldest went');
});

test('an address that came again before its ended connection closed still has its bound', async () => {
  const { budget, come, open } = listener({ most: 2, per_source: 1 });
  const [first] = come('192.0.2.1');
  come('192.0.2.2');
  come('192.0.2.3');
  assert.equal(first?.is_open, false);
  const [again] = come('192.0.2.1');
  await new Promise((resolve) => setImmediate(resolve));
  budget.use(again ?? assert.fail());
  assert.equal(open(come('192.0.2.1')), 0);
});

test('a proxy is known by its address, whoever of its network came first', () => {
  const { come, open } = listener({ most: 40, per_source: 5, proxy: '2001:db8::9' });
  assert.equal(open(come('2001:db8::1', 10)), 5);
  assert.equal(open(come('2001:db8::9', 10)), 10);
  assert.equal(open(come('2001:db8::2', 10)), 5);
});

test('a trusted connection never ends for a newcomer, and takes nothing from its address', () => {
  const { budget, come, open } = listener({ most: 20, per_source: 10 });
  const trusted = come('192.0.2.1', 10);
  for (const each of trusted) assert.equal(budget.trust(each), true);
  // Neither for those of its own address, nor for those of others.
  assert.equal(open(come('192.0.2.1', 30)), 10);
  for (let at = 0; at < 30; at++) come(`198.51.100.${at}`, 1);
  assert.equal(open(trusted), 10);
});

test('trusted connections of one kind leave a part to the others', async () => {
  const { budget, come, open } = listener({ most: 20, per_source: 20 });
  const streams = Array.from({ length: 20 }, () => come('192.0.2.1')[0] ?? assert.fail());
  assert.equal(streams.filter((each) => budget.trust(each, 0.75)).length, 10, 'as many as one address had');
  const more = Array.from({ length: 10 }, () => come('192.0.2.1')[0] ?? assert.fail());
  assert.equal(more.filter((each) => budget.trust(each, 0.75)).length, 5);
  const [poll] = come('192.0.2.1');
  assert.equal(budget.trust(poll ?? assert.fail()), true);
  for (const each of streams) each.destroy();
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(budget.trust(come('192.0.2.1')[0] ?? assert.fail(), 0.75), true, 'they end');
  assert.equal(open([poll ?? assert.fail()]), 1);
});

test('connections that end make room, and leave nothing behind', async () => {
  const { come, open } = listener({ most: 10, per_source: 5 });
  for (let round = 0; round < 5; round++) {
    const all = [...come('192.0.2.1', 5), ...come('192.0.2.2', 5)];
    assert.equal(open(all), 10);
    for (const each of all) each.destroy();
    await new Promise((resolve) => setImmediate(resolve));
  }
});

test('an IPv6 network of a customer is one source, and an IPv4 address in IPv6 is that address', () => {
  assert.equal(sourceOf('2001:db8:1:2::1'), sourceOf('2001:db8:1:2:ffff::9'));
  assert.notEqual(sourceOf('2001:db8:1:2::1'), sourceOf('2001:db8:1:3::1'));
  assert.equal(sourceOf('::ffff:192.0.2.1'), '192.0.2.1');
});

test('connections leave a part of the open files to everything else', () => {
  assert.equal(filesForConnections(65_536), 61_440);
  assert.equal(filesForConnections(256), 192);
  assert.equal(filesForConnections(Number.POSITIVE_INFINITY), Number.POSITIVE_INFINITY);
  assert.ok(openFilesLimit() > 0);
});
