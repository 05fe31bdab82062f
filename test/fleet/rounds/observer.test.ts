/** The observer believes a host's record that a guest is paused for good, unless the guest goes on. */
import assert from 'node:assert/strict';
import { appendFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { until } from '../../support/waiting.ts';
import { History } from './history.ts';
import { Observer } from './observer.ts';

const folder = mkdtempSync(join(tmpdir(), 'berth-observer-'));
after(() => rmSync(folder, { recursive: true }));

test('a guest that says something after its memory was saved is an error', async () => {
  const vm = join(folder, 'vms', 'inst_a');
  mkdirSync(vm, { recursive: true });
  const say = (number: number) => appendFileSync(join(vm, 'console.log'), `@@ R 4685064d ${number}\n`);
  const record = (memory?: object) =>
    writeFileSync(join(vm, 'record.json'), JSON.stringify({ epoch: 4, memory }));
  const history = new History(join(folder, 'history.jsonl'));
  const observer = new Observer([{ name: 'rack-1', data_dir: folder, folder }], history);
  const seen = (kind: string) => history.events.filter((event) => event.kind === kind).length;
  record();
  say(1);
  await until('it is seen', () => seen('record') === 1);
  record({ key: 'saved' });
  say(2);
  await until('it is seen', () => seen('record') === 2);
  assert.equal(seen('guest error'), 0, 'it may have said so before');
  say(3);
  await until('it is seen', () => seen('record') === 3);
  observer.close();
  assert.equal(seen('guest error'), 1);
});
