import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { ConsoleLog, consoleTail } from './console-log.ts';

test('a console goes on where its log cannot be written, and is kept again once it can', async (t) => {
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
  // A PassThrough gives back what it is given: what it shows, and then what is typed.
  const shown = once(guest, 'data');
  guest.write('lost\n');
  assert.equal(String((await shown)[0]), 'lost\n');
  rmdirSync(log_path);
  const shown_again = once(guest, 'data');
  guest.write('kept\n');
  assert.equal(String((await shown_again)[0]), 'kept\n');
  assert.equal(readFileSync(log_path, 'utf8'), 'kept\n');
});

test('of a panic it is told why, not how its registers were', (t) => {
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
