/**
 * The test runner: `node bin/run-tests.ts TAP FILE…` runs test files in the given order (`node --test` would sort
 * them), three at a time, and writes their results to the file TAP too.
 *
 * - All files use one PostgreSQL server. It ends with the run, also when the run is interrupted.
 * - The files that share an installation (shared-installation.ts) run one after the other in one process, which takes
 *   the place of the first of them.
 */
import { createWriteStream, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { finished } from 'node:stream/promises';
import { run } from 'node:test';
import { spec, tap } from 'node:test/reporters';
import { endIfInterrupted } from '../test/support/interrupted.ts';
import { startTestPostgres } from '../test/support/test-postgres.ts';

const TOGETHER = join(import.meta.dirname, 'run-together.ts');

const [tap_path = '', ...files] = process.argv.slice(2);
const together = files.filter((file) => /shared-installation\.ts'/.test(readFileSync(file, 'utf8')));
const processes = [...new Set(files.map((file) => (together.includes(file) ? TOGETHER : file)))];
const postgres = await startTestPostgres();
const interrupted = new AbortController();
endIfInterrupted(async () => interrupted.abort());
const results = run({
  files: processes,
  // On two cores: the tests wait for other processes and for guests more than they compute.
  concurrency: 3,
  timeout: 600_000,
  signal: interrupted.signal,
  execArgv: ['--import', './test/support/end-of-file.ts'],
  env: { ...process.env, BERTH_TEST_POSTGRES: postgres.url, BERTH_TEST_TOGETHER: together.join(' ') },
});
results.on('test:fail', () => {
  process.exitCode = 1;
});
results.compose(new spec()).pipe(process.stdout);
await finished(results.compose(tap).pipe(createWriteStream(tap_path)));
await postgres.stop();
