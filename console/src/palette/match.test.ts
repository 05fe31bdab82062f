import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findCommands } from './match.ts';

const COMMANDS = [
  { name: 'Instances' },
  { name: 'web', words: 'instance running' },
  { name: 'Stop web', words: 'shut down' },
  { name: 'webhook-box', words: 'instance stopped' },
  { name: 'my-web', words: 'instance stopped' },
  { name: 'Webhooks' },
];
const found = (typed: string) => findCommands(COMMANDS, typed, 4).map(({ name }) => name);

test('a command is found by the beginnings of its words, those at its start first', () => {
  assert.deepEqual(found('web'), ['web', 'webhook-box', 'Webhooks', 'Stop web']);
  assert.deepEqual(found('st we'), ['Stop web', 'webhook-box', 'my-web']);
  assert.deepEqual(found('SHUT'), ['Stop web']);
});

test('every typed word must fit, nothing typed fits all, and the list is bounded', () => {
  assert.deepEqual(found('stop nothing'), []);
  assert.deepEqual(found('  '), ['Instances', 'web', 'Stop web', 'webhook-box']);
});
