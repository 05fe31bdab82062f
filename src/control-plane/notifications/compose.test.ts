import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { newId } from '../../shared/ids.ts';
import { EVENT_TYPES, PRIVATE_EVENT_TYPES } from '../events/model.ts';
import type { NumberedEvent } from '../events/store.ts';
import { compose } from './compose.ts';
import { KIND_NAMES } from './model.ts';

const TYPES = [...EVENT_TYPES, ...PRIVATE_EVENT_TYPES];
const user_id = newId('usr');

function event(type: string, data: unknown): NumberedEvent {
  return {
    position: 1,
    id: newId('evt'),
    org_id: newId('org'),
    user_id,
    instance_id: newId('inst'),
    sequence: 1,
    type,
    data,
    actor: user_id,
    created_at: new Date(0),
  };
}

test('every kind is told of by one type of event', () => {
  const kinds = TYPES.flatMap((type) => compose(event(type, {}))?.kind ?? []);
  assert.deepEqual(kinds.sort(), KIND_NAMES.toSorted());
});

test('of what its host has lost it is not said that a flush to come saves it', () => {
  const told = (code: string) =>
    compose(event('disk.flush_failed', { error: { code, message: 'Why.' } }))?.body;
  assert.equal(told('vm_gone'), 'Why.');
  assert.match(told('flush_failed') ?? '', /^Why\. Nothing is lost: /);
});

test('whatever an event holds, a notification has bounded texts and somebody who is concerned', () => {
  const text = fc.oneof(fc.string({ unit: 'binary', maxLength: 3_000 }), fc.jsonValue());
  const data = fc.dictionary(
    fc.constantFrom(
      'instance',
      'api_key',
      'ssh_key',
      'member',
      'webhook',
      'factor',
      'ip',
      'name',
      'filesystem',
    ),
    fc.oneof(text, fc.dictionary(fc.constantFrom('id', 'name', 'vm', 'role', 'used_bytes'), text)),
  );
  fc.assert(
    fc.property(fc.constantFrom(...TYPES), data, (type, given) => {
      const told = compose(event(type, given));
      if (told === null) return;
      assert.ok(told.title.length <= 200 && told.body.length <= 1_000);
      assert.ok(told.title.isWellFormed() || !JSON.stringify(given).isWellFormed());
      assert.ok(told.audience.holders.length + told.audience.roles.length > 0);
    }),
  );
});

test('a name is cut where it is too long, and not in the middle of a character', () => {
  const name = '💥'.repeat(300);
  const told = compose(event('vm.failed', { instance: { id: 'x', name } }));
  assert.ok(told?.title.endsWith('…') && told.title.isWellFormed());
});
