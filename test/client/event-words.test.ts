import assert from 'node:assert/strict';
import { test } from 'node:test';
import { actorWords, eventSentence } from '../../client/src/event-words.ts';
import type { Event, EventType } from '../../client/src/generated.ts';
import { EVENT_TYPES } from '../../src/control-plane/events/model.ts';

const instance = { id: 'inst_1', name: 'web', disk: { generation: 6 }, vm: { reason: { code: 'ready' } } };

function event(type: EventType, data: Record<string, unknown> = {}, actor = 'usr_1'): Event {
  const actor_name = actor === 'usr_1' ? 'ada@example.org' : null;
  const all = { org_id: 'org_1', sequence: 1, instance, actor, ...data };
  return { id: 'evt_1', type, timestamp: '2026-11-25T09:12:00.000Z', actor_name, data: all };
}

test('an event says who did what, and the generation', () => {
  const reason = { code: 'resume_failed', message: 'The disk is full.' };
  const not_resumed = { ...instance, vm: { reason } };
  const flush = (trigger: string) => ({ flush: { generation: 6, trigger } });
  const cases: readonly (readonly [Event, string])[] = [
    [event('vm.started', { cause: 'start_requested' }), 'ada@example.org started web'],
    [event('vm.started', { cause: 'woken' }, 'system'), 'A connection started web'],
    [event('vm.suspended', { cause: 'suspend_requested' }), 'ada@example.org suspended web (generation 6)'],
    [
      event('vm.suspended', { instance: not_resumed }, 'host_1'),
      'web could not be resumed: The disk is full.',
    ],
    [event('vm.stopped', { cause: 'stop_requested' }), 'ada@example.org stopped web (generation 6)'],
    [event('vm.stopped', { cause: 'idle' }, 'system'), 'Berth stopped web, which was idle (generation 6)'],
    [
      event('vm.stopped', { cause: 'guest_poweroff' }, 'host_1'),
      'The guest of web powered off (generation 6)',
    ],
    [event('disk.flushed', flush('request')), 'ada@example.org flushed web: generation 6'],
    [
      event('disk.flushed', flush('import'), 'operator'),
      'The operator of the server imported the disk of web: generation 6',
    ],
    [event('disk.flushed', flush('auto'), 'host_1'), 'Automatic flush of web: generation 6'],
    [
      event('disk.flushed', flush('stop')),
      'Flush of web before its stop, which ada@example.org asked for: generation 6',
    ],
    [event('disk.flushed', flush('stop'), 'system'), 'Flush of web before its stop: generation 6'],
    [
      event('instance.forked', { forked_from: { instance_id: 'inst_2', generation: 3 } }),
      'ada@example.org forked web from generation 3 of db',
    ],
    [
      event('instance.restored', { restored_from: { generation: 3 } }),
      'ada@example.org restored web to generation 3 (now generation 6)',
    ],
    [
      event('port.created', { port: { port: 8080, access: 'private' } }),
      'ada@example.org published port 8080 of web',
    ],
    [
      event('port.changed', { port: { port: 8080 }, change: { access: 'public' } }),
      'ada@example.org made port 8080 of web public',
    ],
    [
      event('port.changed', { port: { port: 8080 }, change: { hostname: 'a.example.com', is: 'added' } }),
      'ada@example.org added the hostname a.example.com to port 8080 of web',
    ],
    [
      event('port.changed', { port: { port: 8080 }, change: { hostname: 'a.example.com', is: 'pending' } }),
      'The TXT record of a.example.com is missing: port 8080 of web no longer answers to it',
    ],
    [event('member.removed', { member: { id: 'usr_1', email: 'ada@example.org' } }), 'ada@example.org left'],
  ];
  for (const [each, sentence] of cases) {
    const said = eventSentence(each, (id) => (id === 'inst_2' ? 'db' : undefined));
    assert.equal(said, sentence);
  }
});

test('every type has a sentence, also without its data', () => {
  for (const type of EVENT_TYPES) {
    for (const data of [{}, { instance: null, flush: 7, member: 'x', error: [] }]) {
      const said = eventSentence(event(type, data));
      assert.notEqual(said, type);
      assert.doesNotMatch(said, /\[object/);
    }
  }
});

test('an actor has its name; hosts, Berth and the operator are said in words', () => {
  assert.equal(actorWords('usr_1', 'ada@example.org'), 'ada@example.org');
  assert.equal(actorWords('usr_1', null), 'usr_1');
  assert.equal(actorWords('sa_1', 'ci'), 'ci (service account)');
  assert.deepEqual(
    ['host_1', 'system', 'operator'].map((actor) => actorWords(actor, null)),
    ['the host', 'Berth', 'the operator of the server'],
  );
});
