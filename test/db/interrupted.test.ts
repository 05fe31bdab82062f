/** A run of tests that is interrupted leaves no database behind. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { runningServer } from '../../src/launcher/embedded-postgres.ts';
import { isAlive } from '../../src/launcher/run-command.ts';
import { inheritedEnvironment } from '../support/installation.ts';
import { until } from '../support/waiting.ts';

const SUPPORT = join(import.meta.dirname, '..', 'support', 'database.ts');

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  // As a terminal sends it; the runner sends SIGTERM to its files beside.
  test(`${signal} to all of a run ends the servers of its files and removes their folders`, async (t: TestContext) => {
    const folder = await mkdtemp(join(tmpdir(), 'berth-interrupted-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const [file, told] = [join(folder, 'one.test.ts'), join(folder, 'told')];
    await writeFile(
      file,
      `import { renameSync, writeFileSync } from 'node:fs';
      import { test } from 'node:test';
      import { startDatabase } from ${JSON.stringify(SUPPORT)};
      test('goes on', async () => {
        const { socket_dir } = await startDatabase();
        const own = JSON.stringify({ pid: process.pid, socket_dir });
        writeFileSync(${JSON.stringify(`${told}.new`)}, own);
        renameSync(${JSON.stringify(`${told}.new`)}, ${JSON.stringify(told)});
        setInterval(() => undefined, 1_000);
        await new Promise(() => undefined);
      });`,
    );
    const { NODE_TEST_CONTEXT: _, ...env } = inheritedEnvironment();
    const runner = spawn(process.execPath, ['--test', file], { env, detached: true, stdio: 'ignore' });
    const ended = once(runner, 'exit');
    await until('its database runs', () => existsSync(told) || runner.exitCode !== null);
    const { pid, socket_dir } = JSON.parse(await readFile(told, 'utf8'));
    const cluster = join(socket_dir, '..', 'cluster');
    const server = await runningServer(cluster);
    process.kill(-(runner.pid ?? Number.NaN), signal);
    await ended;
    await until('the file has ended', () => !isAlive(pid));
    // At once: what it leaves is swept by the next file that starts a database.
    assert.deepEqual([existsSync(cluster), server && isAlive(server.pid)], [false, false]);
  });
}
