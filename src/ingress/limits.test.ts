import assert from 'node:assert/strict';
import { test } from 'node:test';
import { HTTP_LIMITS, httpLimitsWithin } from './limits.ts';

test('connections of clients and guests together stay below the limit of open files', () => {
  for (const open_files of [256, 1_024, 20_000]) {
    const { connections, exchanges_per_instance } = httpLimitsWithin(open_files);
    assert.ok(5 * exchanges_per_instance <= connections, 'one instance has no more than a fifth');
    assert.ok(connections > 0 && 2 * connections < open_files * 0.95, `${open_files}: ${connections}`);
  }
});

test('a service with Debian’s packaged limit, or none, has all connections', () => {
  for (const open_files of [65_536, Number.POSITIVE_INFINITY])
    assert.deepEqual(httpLimitsWithin(open_files), HTTP_LIMITS);
});
