/** Runs the test files of BERTH_TEST_TOGETHER in this process, one after the other (`bin/run-tests.ts`). */
import { join } from 'node:path';
import { test } from 'node:test';

const files = (process.env['BERTH_TEST_TOGETHER'] ?? '').split(' ').filter((file) => file !== '');
for (const file of files) {
  await import(join(import.meta.dirname, '..', file)).catch((error: unknown) => {
    test(file, () => {
      throw error;
    });
  });
}
