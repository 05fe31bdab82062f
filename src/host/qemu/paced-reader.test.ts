import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { LineSplitter, LineTooLongError, PacedReader, ReadBudget } from './paced-reader.ts';

const MIB = 1024 * 1024;

test('a budget starts with its burst, refills with time, and never exceeds its burst', () => {
  let now_ms = 0;
  const budget = new ReadBudget({ bytes_per_second: 1_000, burst_bytes: 5_000 }, () => now_ms);
  budget.spend(5_000);
  assert.equal(budget.wait_ms, 0);
  budget.spend(2_000);
  assert.equal(budget.wait_ms, 2_000);
  now_ms += 1_500;
  assert.equal(budget.wait_ms, 500);
  now_ms += 3_600_000;
  budget.spend(5_001);
  assert.equal(budget.wait_ms, 1);
});

test('the time to parse a message counts fifty times', () => {
  let worked_ms = 0;
  const pace = { bytes_per_second: 1_000, burst_bytes: 1_000 };
  const budget = new ReadBudget(
    pace,
    () => 0,
    () => worked_ms,
  );
  const work = (ms: number) => () => {
    worked_ms += ms;
    return ms;
  };
  assert.equal(budget.spendOn(work(20)), 20);
  assert.equal(budget.wait_ms, 0);
  assert.equal(budget.spendOn(work(2)), 2);
  assert.equal(budget.wait_ms, 100);
  assert.throws(() => budget.spendOn(() => JSON.parse('no')));
});

async function pair(t: TestContext, budget: ReadBudget) {
  const folder = mkdtempSync(join(tmpdir(), 'berth-paced-'));
  const server = createServer().listen(join(folder, 's'));
  t.after(() => {
    server.close();
    rmSync(folder, { recursive: true, force: true });
  });
  await once(server, 'listening');
  const got: Buffer[] = [];
  const arrived = { next: Promise.withResolvers<void>() };
  const reader = new PacedReader(join(folder, 's'), budget, (chunk) => {
    got.push(chunk);
    arrived.next.resolve();
    arrived.next = Promise.withResolvers<void>();
  });
  const [sender] = (await once(server, 'connection')) as [Socket];
  t.after(() => {
    reader.socket.destroy();
    sender.destroy();
  });
  return { reader, sender, got, arrived };
}

test('an unexpected message is not read: its sender waits, and it arrives completely once it is expected', async (t) => {
  const { reader, sender, got, arrived } = await pair(
    t,
    new ReadBudget({ bytes_per_second: 1e9, burst_bytes: 1e9 }),
  );
  // More than the kernel buffers for a socket that is not read.
  const sent = Buffer.alloc(4 * MIB, 'x');
  let written = false;
  sender.write(sent, () => {
    written = true;
  });
  // All readable data has been read now, because each turn of the event loop polls.
  for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual([got.length, written], [0, false]);
  reader.expect(true);
  while (Buffer.concat(got).length < sent.length) await arrived.next.promise;
  assert.equal(Buffer.concat(got).compare(sent), 0);
  reader.expect(false);
  const before = got.length;
  sender.write('more');
  for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(got.length, before);
});

test('over its budget a socket is not read, however small the chunks', async (t) => {
  let now_ms = 0;
  const budget = new ReadBudget({ bytes_per_second: 1, burst_bytes: 16 * 1024 }, () => now_ms);
  const { reader, sender, got, arrived } = await pair(t, budget);
  reader.expect(true);
  // Each is one read and counts as 8 KiB: two are within the budget, a third overdraws it.
  for (let nth = 1; nth <= 3; nth++) {
    const next = arrived.next.promise;
    sender.write('x');
    await next;
    assert.equal(got.length, nth);
  }
  sender.write('x'.repeat(1_000));
  for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(Buffer.concat(got).length, 3);
  now_ms += 86_400_000;
  const next = arrived.next.promise;
  reader.expect(true);
  await next;
  assert.equal(Buffer.concat(got).length, 1_003);
});

function linesOf(splitter: LineSplitter, chunk: Buffer): Buffer[] {
  const lines: Buffer[] = [];
  splitter.push(chunk);
  for (let line = splitter.next(); line; line = splitter.next()) lines.push(line);
  return lines;
}

test('any cut of a stream into chunks gives the same lines', () => {
  const line = fc
    .uint8Array({ maxLength: 20 })
    .map((bytes) => Buffer.from(bytes.map((b) => (b === 10 ? 11 : b))));
  fc.assert(
    fc.property(fc.array(line), line, fc.array(fc.nat(30)), (lines, rest, cuts) => {
      const stream = Buffer.concat([...lines.flatMap((each) => [each, Buffer.from('\n')]), rest]);
      const splitter = new LineSplitter(64);
      const out: Buffer[] = [];
      let offset = 0;
      for (const cut of cuts) {
        out.push(...linesOf(splitter, stream.subarray(offset, offset + cut)));
        offset += cut;
      }
      out.push(...linesOf(splitter, stream.subarray(offset)));
      assert.deepEqual(
        out.map((each) => each.toString('hex')),
        lines.map((each) => each.toString('hex')),
      );
      assert.equal(splitter.held_bytes, rest.length);
    }),
  );
});

test('a line over the limit is refused, complete or not; one at the limit is accepted', () => {
  assert.equal(linesOf(new LineSplitter(4), Buffer.from('1234\n')).length, 1);
  assert.throws(() => linesOf(new LineSplitter(4), Buffer.from('12345\n')), LineTooLongError);
  const splitter = new LineSplitter(4);
  assert.deepEqual(linesOf(splitter, Buffer.from('123')), []);
  assert.throws(() => linesOf(splitter, Buffer.from('45')), LineTooLongError);
  assert.equal(splitter.held_bytes, 0);
});

test('lines before one over the limit are returned; a line sent in single bytes is refused at the limit', () => {
  const splitter = new LineSplitter(4);
  splitter.push(Buffer.from('ok\n123456789'));
  assert.equal(String(splitter.next()), 'ok');
  assert.throws(() => splitter.next(), LineTooLongError);
  for (let count = 1; count <= 4; count++) assert.deepEqual(linesOf(splitter, Buffer.from('x')), []);
  assert.throws(() => linesOf(splitter, Buffer.from('x')), LineTooLongError);
});
