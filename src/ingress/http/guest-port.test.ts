import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { HttpRoute } from '../../protocol/ingress-types.ts';
import { newId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import { HTTP_LIMITS } from '../limits.ts';
import { GuestPort } from './guest-port.ts';

test('the waiting requests of others never take a port its last places', async () => {
  const closing = new AbortController();
  const totals = { waiting: 0 };
  const portOf = (): GuestPort => {
    const route: HttpRoute = {
      ...{ port_id: newId('port'), instance_id: newId('inst'), hostnames: [], port: 80, access: 'public' },
      ...{ target: null, resets: 0, wake: true },
    };
    return new GuestPort(route, {
      client: {
        wake: async () => ({ outcome: 'coming' }),
        openPort: async () => ({ outcome: 'open', address: '127.0.0.1:1' }),
        openTunnel: () => Promise.reject(new Error('not used')),
      },
      limits: { ...HTTP_LIMITS, waiting: 2, assured_waiting: 1 },
      log: createLog('test', 'silent'),
      ...{ closing: closing.signal, totals, refresh: async () => undefined, active: () => undefined },
    });
  };
  const [theirs, own] = [portOf(), portOf()];
  const signal = new AbortController().signal;
  const waiting = [theirs.way(signal), theirs.way(signal)];
  await assert.rejects(theirs.way(signal), /Too many requests wait/);
  waiting.push(own.way(signal));
  await assert.rejects(own.way(signal), /Too many requests wait/);
  for (const port of [theirs, own]) port.update({ ...port.route, target: 'local' });
  assert.equal((await Promise.all(waiting)).length, 3);
  assert.equal(totals.waiting, 0);
  closing.abort();
});
