import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { readTimedConsole } from '../calls/call-server.ts';
import { ConsoleLog, ConsoleTimes, consoleTail, readArrivals, timesPathOf } from './console-log.ts';

test('a guest that prints without end is slowed down: its log stays small, and no output accumulates in memory', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-console-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const [socket_path, log_path] = [join(folder, 'socket'), join(folder, 'log')];
  const server = createServer().listen(socket_path);
  t.after(() => server.close());
  await once(server, 'listening');
  const connected = once(server, 'connection');
  const log = new ConsoleLog(socket_path, log_path);
  t.after(() => log.close());
  const [guest] = (await connected) as [Socket];
  t.after(() => guest.destroy());
  const flood = Buffer.alloc(64 * 1024 * 1024, '\u001b[2J\n');
  const began = performance.now();
  guest.write(flood);
  for (let turn = 0; turn < 500; turn++) await new Promise((resolve) => setImmediate(resolve));
  const seconds = (performance.now() - began) / 1_000;
  const { size } = statSync(log_path);
  // A mebibyte at once, then a quarter a second, and one read more.
  assert.ok(
    size > 0 && size <= 2 * 1024 * 1024 && size <= 1024 * 1024 * (1 + seconds / 4) + 65_536,
    `${size}`,
  );
  assert.ok(guest.writableLength > flood.length / 2, `${guest.writableLength}`);
  const times = readArrivals(log_path);
  assert.ok(times.length > 0 && times.length < 100, `${times.length}`);
  assert.ok(times.every(({ offset }) => offset <= size));
});

test('a console’s tail in a message is one line without control characters', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-console-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const log_path = join(folder, 'log');
  writeFileSync(log_path, `${'x'.repeat(70_000)}\n\u001b]0;owned\u0007\u001b[1mlogin:\u202e\r\n`);
  const tail = consoleTail(log_path);
  assert.ok(tail.length <= 300 && /^[x |a-z:…]*$/.test(tail), tail);
});

test('a console works while its log cannot be written, and is logged again once it can', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-console-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const [socket_path, log_path] = [join(folder, 'socket'), join(folder, 'log')];
  const server = createServer().listen(socket_path);
  t.after(() => server.close());
  await once(server, 'listening');
  mkdirSync(log_path);
  const connected = once(server, 'connection');
  const log = new ConsoleLog(socket_path, log_path);
  t.after(() => log.close());
  const [guest] = (await connected) as [Socket];
  const watcher = new PassThrough();
  log.attach(watcher);
  // A PassThrough returns its input: first the console's output, then the typed text.
  const shown = once(guest, 'data');
  guest.write('lost\n');
  assert.equal(String((await shown)[0]), 'lost\n');
  rmdirSync(log_path);
  const shown_again = once(guest, 'data');
  guest.write('kept\n');
  assert.equal(String((await shown_again)[0]), 'kept\n');
  assert.equal(readFileSync(log_path, 'utf8'), 'kept\n');
});

test('a panic’s reason has its cause, not its registers', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-console-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const log_path = join(folder, 'log');
  const registers = Array.from({ length: 90 }, (_, at) => `[ 9.${at}] R${at}: 0000000000000000`);
  const printed = ['up', '[ 8.9] Kernel panic - not syncing: why', '[ 9.0] CPU: 0', ...registers];
  writeFileSync(log_path, printed.join('\r\n'));
  assert.match(consoleTail(log_path, /Kernel panic/), /^\[ 8\.9\] Kernel panic - not syncing: why \| /);
  assert.match(consoleTail(log_path), /R89: 0+$/);
  assert.match(consoleTail(log_path, /another/), /R89: 0+$/);
});

const BEGIN_MS = Date.UTC(2026, 10, 25);
const iso = (ms: number) => new Date(BEGIN_MS + ms).toISOString();
const ALL = 1024 * 1024;

function folderOf(t: Pick<TestContext, 'after'>): string {
  const folder = mkdtempSync(join(tmpdir(), 'berth-times-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A log, and how output arrives in it. */
function logIn(folder: string) {
  const path = join(folder, 'console.log');
  writeFileSync(path, '');
  let times = new ConsoleTimes(path, 0);
  const size = () => statSync(path).size;
  return {
    path,
    arrive: (text: string, at_ms: number) => {
      times.note(size(), BEGIN_MS + at_ms);
      appendFileSync(path, text);
    },
    keepLast: (bytes: number, text: string) => {
      writeFileSync(path, text.slice(-bytes));
      times.drop(text.length - Math.min(bytes, text.length));
    },
    agentRestarts: () => {
      times = new ConsoleTimes(path, size());
    },
    read: (max_bytes = ALL) => readTimedConsole(path, max_bytes).text,
  };
}

test('each line has the time at which its first byte arrived, also when the line came in parts', (t) => {
  const { arrive, read } = logIn(folderOf(t));
  arrive('boot\r\nlog', 0);
  arrive('in: ', 5_000);
  arrive('root\n\nlast', 9_000);
  assert.equal(read(), `${iso(0)} boot\r\n${iso(0)} login: root\n${iso(9_000)} \n${iso(9_000)} last`);
});

test('output before the first known time, and of a log whose times do not fit it, has none', (t) => {
  const { path, arrive, agentRestarts, read } = logIn(folderOf(t));
  appendFileSync(path, 'old\n');
  arrive('new\n', 0);
  assert.equal(read(), `- old\n${iso(0)} new\n`);
  // The log was cut and a crash came before its times were.
  writeFileSync(path, 'ew\n');
  agentRestarts();
  assert.equal(read(), '- ew\n');
  arrive('next\n', 1_000);
  assert.equal(read(), `- ew\n${iso(1_000)} next\n`);
});

test('a restarted agent goes on, and a clock that was set back is told as it was', (t) => {
  const { arrive, agentRestarts, read } = logIn(folderOf(t));
  arrive('one\n', 60_000);
  agentRestarts();
  arrive('two\n', 90_000);
  arrive('three\n', 10_000);
  assert.equal(read(), `${iso(60_000)} one\n${iso(90_000)} two\n${iso(10_000)} three\n`);
});

test('the end of a long log is whole lines within the limit, and of a longer line its end', (t) => {
  const { path, arrive, read } = logIn(folderOf(t));
  for (let nth = 0; nth < 100; nth++) arrive(`line ${nth}\n`, nth * 1000);
  const text = read(1024);
  assert.ok(text.length <= 1024 && text.length > 900);
  assert.match(text, new RegExp(`^${iso(69_000)} line 69\n`.replaceAll('.', '\\.')));
  writeFileSync(path, 'x'.repeat(5000));
  assert.match(read(1024), /^\S+ x{900,1023}$/);
  assert.equal(read(0), '');
  assert.equal(readTimedConsole(join(path, '..', 'none'), ALL).text, '');
});

test('whatever arrives and is dropped, every byte keeps the time of its arrival', (t) => {
  const folder = folderOf(t);
  const step = fc.oneof(
    fc.record({ text: fc.stringMatching(/^[ab\n]{1,8}$/), after_ms: fc.integer({ min: 100, max: 500 }) }),
    fc.record({ keep: fc.integer({ min: 1, max: 20 }) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      rmSync(timesPathOf(join(folder, 'console.log')), { force: true });
      const log = logIn(folder);
      let expected: { character: string; at_ms: number }[] = [];
      let now_ms = 0;
      const textOf = () => expected.map(({ character }) => character).join('');
      for (const each of steps) {
        if ('keep' in each) {
          const before = textOf();
          expected = expected.slice(Math.max(0, expected.length - each.keep));
          log.keepLast(each.keep, before);
        } else {
          now_ms += each.after_ms;
          log.arrive(each.text, now_ms);
          expected.push(...[...each.text].map((character) => ({ character, at_ms: now_ms })));
        }
      }
      let told = '';
      for (const [nth, { character, at_ms }] of expected.entries()) {
        const begins = nth === 0 || expected[nth - 1]?.character === '\n';
        told += begins ? `${iso(at_ms)} ${character}` : character;
      }
      assert.equal(log.read(), told);
    }),
    { numRuns: 200 },
  );
});

test('the file of times is bounded, however often something arrives', (t) => {
  const { path, arrive, read } = logIn(folderOf(t));
  for (let nth = 0; nth < 40_000; nth++) arrive('\n', nth * 1000);
  assert.ok(readArrivals(path).length <= 32_768);
  assert.ok(statSync(timesPathOf(path)).size < 1024 * 1024);
  assert.match(read(200), new RegExp(`${iso(39_999_000)} \n$`.replaceAll('.', '\\.')));
});
