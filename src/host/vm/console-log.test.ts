import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { ConsoleLog, consoleTail, readArrivals } from './console-log.ts';

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
