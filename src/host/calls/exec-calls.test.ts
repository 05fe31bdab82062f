import assert from 'node:assert/strict';
import { test } from 'node:test';
import { only } from '../../../test/support/only.ts';
import { newId } from '../../shared/ids.ts';
import type { Machine } from '../vm/machine.ts';
import { serveCommand } from './exec-calls.ts';

test('a command in a machine that has not answered since its adoption fails as guest_silent, not as not_running', async () => {
  const ids = { instance_id: newId('inst'), vm_id: newId('vm') };
  const call = { ...ids, kind: 'exec', command: ['true'], stdin: '', timeout_ms: 1_000 } as const;
  const ask = (view: Machine['view']) => serveCommand(only<Machine>({ view }), call, AbortSignal.abort());
  await assert.rejects(ask('booting'), { code: 'guest_silent' });
  await assert.rejects(ask('off'), { code: 'not_running' });
});
