/**
 * `node bin/run-tests.ts ARGUMENT…`: runs `node ARGUMENT…`, the test runner, with one PostgreSQL server for all of its files. The server
 * ends with the runner, also when the run is interrupted.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { endIfInterrupted } from '../test/support/interrupted.ts';
import { startTestPostgres } from '../test/support/test-postgres.ts';

const postgres = await startTestPostgres();
const runner = spawn(process.execPath, process.argv.slice(2), {
  env: { ...process.env, BERTH_TEST_POSTGRES: postgres.url },
  stdio: 'inherit',
});
endIfInterrupted(async () => void runner.kill());
const [code] = await once(runner, 'exit');
await postgres.stop();
process.exitCode = code ?? 1;
