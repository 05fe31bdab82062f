import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { checkListenAddress, lockDataFolder } from '../../src/launcher/data-folder.ts';
import { isAlive } from '../../src/launcher/run-command.ts';
import { StartError } from '../../src/launcher/start-error.ts';
import { until } from '../support/waiting.ts';
import { cleanUp, kill, runScript, temporaryFolder } from './processes.ts';

const quiet = () => undefined;

function holder(lock_path: string, after = ''): string {
  return `
    import { lockDataFolder } from 'SRC/launcher/data-folder.ts';
    import { spawn } from 'node:child_process';
    try {
      const lock = await lockDataFolder(${JSON.stringify(lock_path)}, () => undefined);
      ${after}
      console.log('held');
      setInterval(() => {}, 1000);
    } catch (error) { console.log(error.message); }`;
}

test('a second launcher is refused and told the pid of the first', async (t) => {
  const path = join(await temporaryFolder(t), 'launcher.lock');
  const first = runScript(t, holder(path));
  await until('the first holds the lock', () => first.output().includes('held'));
  await assert.rejects(lockDataFolder(path, quiet), (error: unknown) => {
    assert(error instanceof StartError);
    assert.equal(error.exit_code, 2);
    assert.equal(error.message, `another berth (pid ${first.pid}) already runs on this data folder`);
    return true;
  });
});

test('a SIGKILL of its holder releases the lock', async (t) => {
  const path = join(await temporaryFolder(t), 'launcher.lock');
  const first = runScript(t, holder(path));
  await until('the first holds the lock', () => first.output().includes('held'));
  process.kill(first.pid, 'SIGKILL');
  await first.ended;
  (await lockDataFolder(path, quiet)).release();
});

test('of several launchers that start together exactly one gets the data folder', async (t) => {
  const path = join(await temporaryFolder(t), 'launcher.lock');
  const contenders = Array.from({ length: 6 }, () => runScript(t, holder(path)));
  await until('all have an answer', () => contenders.every(({ output }) => output().includes('\n')));
  const winners = contenders.filter(({ output }) => output() === 'held\n');
  assert.equal(winners.length, 1);
  for (const loser of contenders.filter((contender) => contender !== winners[0])) {
    assert.match(loser.output(), new RegExp(`another berth \\(pid ${winners[0]?.pid}\\)`));
  }
});

test('the roles of a killed launcher keep the data folder until they have ended', async (t) => {
  const path = join(await temporaryFolder(t), 'launcher.lock');
  const spawnRole = `const role = spawn('sleep', ['600'], { stdio: ['ignore', 'ignore', 'ignore', lock.fd], detached: true });
    console.log(\`role \${role.pid} \`);`;
  const first = runScript(t, holder(path, spawnRole));
  await until('the first holds the lock', () => first.output().includes('held'));
  const role_pid = Number(/role (\d+) /.exec(first.output())?.[1]);
  cleanUp(t, () => kill(role_pid));
  process.kill(first.pid, 'SIGKILL');
  await until('the launcher is gone', () => !isAlive(first.pid));
  let waits = false;
  const second = lockDataFolder(path, () => {
    waits = true;
  });
  await until('the second waits', () => waits);
  assert(isAlive(role_pid));
  // Not as where another launcher runs: systemd tries again.
  await assert.rejects(lockDataFolder(path, quiet, 0), { name: 'StartError', exit_code: 1 });
  process.kill(role_pid, 'SIGKILL');
  (await second).release();
});

test('a listen address in use is refused with one line', async (t) => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanUp(t, () => server.close());
  const address = server.address();
  assert(address !== null && typeof address === 'object');
  const { port } = address;
  await assert.rejects(checkListenAddress({ host: '127.0.0.1', port }), {
    name: 'StartError',
    exit_code: 2,
    message: `BERTH_LISTEN: cannot listen on 127.0.0.1:${port}: another program listens there; set another port by BERTH_LISTEN=127.0.0.1:PORT`,
  });
  await assert.rejects(checkListenAddress({ host: '192.0.2.1', port }), /this machine has no such address/);
});
