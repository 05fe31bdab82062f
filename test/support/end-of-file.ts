/**
 * Loaded before each test file (`--import`): a process that goes on long after its tests have ended has left something
 * open. It says what, and fails, instead of holding up the whole run. And one that is interrupted ends the VMs that it started.
 */
import { after } from 'node:test';

/** More than the slowest of the files' own hooks takes, which come after this one. */
const PATIENCE_MS = 120_000;

// The runner itself, which loads this as well, has no tests.
if (process.env['NODE_TEST_CONTEXT'] === 'child-v8') {
  await import('./interrupted.ts');
  after(() => {
    setTimeout(() => {
      process.stderr.write(`still open after the tests: ${process.getActiveResourcesInfo().join(', ')}\n`);
      process.exit(1);
    }, PATIENCE_MS).unref();
  });
}
