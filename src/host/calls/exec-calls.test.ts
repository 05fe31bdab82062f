import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Machine } from '../vm/machine.ts';
import { runCommand } from './exec-calls.ts';

test('a command in a machine that has not answered since its adoption fails as guest_silent, not as not_running', async () => {
  const call = { kind: 'exec', command: ['true'], stdin: Buffer.alloc(0), timeout_ms: 1_000 } as never;
  const ask = (view: Machine['view']) => runCommand({ view } as Machine, call, AbortSignal.abort());
  await assert.rejects(ask('booting'), { code: 'guest_silent' });
  await assert.rejects(ask('off'), { code: 'not_running' });
});
