import assert from 'node:assert/strict';
import { open } from 'node:fs/promises';
import { test } from 'node:test';
import { ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { reasonFor } from './failure-reasons.ts';

test('a reason names the problem without paths on the host', async () => {
  const error: unknown = await open('/nonexistent/secret-place').catch((thrown: unknown) => thrown);
  assert.deepEqual(reasonFor(error, 'flush_failed'), {
    code: 'flush_failed',
    message: 'ENOENT: no such file or directory.',
  });
  const away = new ObjectStoreUnavailableError('folder /secret: its folder is gone', {
    reason: 'its folder is gone',
  });
  assert.deepEqual(reasonFor(away, 'flush_failed'), {
    code: 'object_store_unavailable',
    message: 'The object store cannot be used: its folder is gone.',
  });
});
