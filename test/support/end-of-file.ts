/**
 * Loaded before each test file (`--import`). If the process still runs long after its tests, it has left something open: it
 * prints the open resources and fails, instead of blocking the run. An interrupted process ends its VMs. Each process records
 * its duration.
 */
import { appendFileSync } from 'node:fs';
import { relative } from 'node:path';
import { after } from 'node:test';

/** Longer than the slowest hook of any file, because those hooks run after this one. */
const PATIENCE_MS = 120_000;

// The runner loads this file too, but has no tests.
if (process.env['NODE_TEST_CONTEXT'] === 'child-v8') {
  await import('./interrupted.ts');
  after(() => {
    setTimeout(() => {
      process.stderr.write(`still open after the tests: ${process.getActiveResourcesInfo().join(', ')}\n`);
      process.exit(1);
    }, PATIENCE_MS).unref();
  });
  const durations = process.env['BERTH_TEST_DURATIONS'];
  if (durations !== undefined) {
    process.on('exit', () => {
      const file = relative(process.cwd(), process.argv[1] ?? '');
      appendFileSync(durations, `${(performance.now() / 1000).toFixed(1)} ${file}\n`);
    });
  }
}
