import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../../shared/ids.ts';
import { CAUSES, causeOf } from './change-for.ts';

const person = newId('usr');
type Vm = Parameters<typeof causeOf>[0];
const vm = (state: Vm['state'], reason_code: Vm['reason_code'], reason_actor: string | null): Vm => ({
  state,
  reason_code,
  reason_actor,
  move: null,
});

test('a request, and what ended or woke a VM by itself, is the cause of what completes it', () => {
  for (const code of CAUSES) assert.deepEqual(causeOf(vm('stopping', code, person)), { code, actor: person });
});

test('a stop that waits for its flush keeps its cause, told by its actor', () => {
  const causes = [person, 'system', newId('host')].map(
    (actor) => causeOf(vm('stopping', 'flush_pending', actor))?.code,
  );
  assert.deepEqual(causes, ['stop_requested', 'idle', 'guest_poweroff']);
  const moving = causeOf({ ...vm('stopping', 'flush_pending', 'system'), move: 'stop' });
  assert.equal(moving?.code, 'host_drain');
});

test('what the host observes has no cause', () => {
  assert.equal(causeOf(vm('running', 'ready', newId('host'))), null);
  assert.equal(causeOf(vm('starting', 'start_requested', null)), null);
});
