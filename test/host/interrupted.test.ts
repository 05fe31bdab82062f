/** A run of tests that is interrupted leaves no VM behind, whoever has started it. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { isProcessAlive, killProcess, type ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import { inheritedEnvironment } from '../support/installation.ts';
import { until } from '../support/waiting.ts';

const SUPPORT = join(import.meta.dirname, '..', 'support');
const IDENTITY = join(import.meta.dirname, '..', '..', 'src', 'host', 'qemu', 'qemu-process.ts');

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  test(`${signal} to a test file ends the QEMU that it started in another session`, async (t: TestContext) => {
    const folder = await mkdtemp(join(tmpdir(), 'berth-interrupted-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const [file, told] = [join(folder, 'one.test.ts'), join(folder, 'told')];
    await writeFile(
      file,
      `import { spawn } from 'node:child_process';
      import { renameSync, writeFileSync } from 'node:fs';
      import { test } from 'node:test';
      import { identityOfProcess } from ${JSON.stringify(IDENTITY)};
      test('goes on', async () => {
        const words = ['-M', 'none', '-nodefaults', '-display', 'none', '-S'];
        const qemu = spawn('qemu-system-x86_64', words, { detached: true, stdio: 'ignore' });
        await new Promise((resolve) => qemu.once('spawn', resolve));
        const own = JSON.stringify({ pid: process.pid, qemu: identityOfProcess(qemu.pid) });
        writeFileSync(${JSON.stringify(`${told}.new`)}, own);
        renameSync(${JSON.stringify(`${told}.new`)}, ${JSON.stringify(told)});
        await new Promise((resolve) => qemu.once('exit', resolve));
        setInterval(() => undefined, 1_000);
        await new Promise(() => undefined);
      });`,
    );
    const { NODE_TEST_CONTEXT: _, ...env } = inheritedEnvironment();
    const words = ['--test', '--import', join(SUPPORT, 'end-of-file.ts'), file];
    const runner = spawn(process.execPath, words, { env, stdio: 'ignore' });
    t.after(() => runner.kill('SIGKILL'));
    const ended = once(runner, 'exit');
    await until('its QEMU runs', () => existsSync(told) || runner.exitCode !== null);
    const { pid, qemu } = JSON.parse(await readFile(told, 'utf8')) as { pid: number; qemu: ProcessIdentity };
    t.after(() => killProcess(qemu, 'SIGKILL'));
    assert.ok(isProcessAlive(qemu));
    process.kill(pid, signal);
    await ended;
    await until('the QEMU has ended', () => !isProcessAlive(qemu));
  });
}
