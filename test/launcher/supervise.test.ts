import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { isAlive } from '../../src/launcher/run-command.ts';
import {
  type RoleSpec,
  type SuperviseTiming,
  type Supervisor,
  supervise,
} from '../../src/launcher/supervise.ts';
import { createLog } from '../../src/shared/log.ts';
import { until } from '../support/waiting.ts';
import { cleanUp, kill, runScript, scriptArgs, temporaryFolder } from './processes.ts';

const log = createLog('test', 'silent');

/** A role that writes `<name> …` lines to a journal and ends orderly on SIGTERM, or not at all. */
function role(name: string, journal: string, on_term = 'process.exit(0)'): RoleSpec {
  const code = `
    import { appendFileSync } from 'node:fs';
    const note = (what) => appendFileSync(${JSON.stringify(journal)}, \`${name} \${what}\\n\`);
    process.on('SIGTERM', () => { note('asked'); ${on_term}; });
    setInterval(() => {}, 1000);
    note('up ' + process.pid);`;
  return { name, args: scriptArgs(code) };
}

async function linesOf(journal: string): Promise<string[]> {
  const text = await readFile(journal, 'utf8').catch(() => '');
  return text.split('\n').filter((line) => line !== '');
}

function supervised(
  t: TestContext,
  roles: readonly RoleSpec[],
  timing: Partial<SuperviseTiming> = {},
): Supervisor {
  const supervisor = supervise({
    roles,
    env: { PATH: '/usr/bin:/bin' },
    log,
    timing: { backoff_min_ms: 10, backoff_max_ms: 50, ...timing },
  });
  cleanUp(t, async () => {
    supervisor.kill();
    await supervisor.stop();
  });
  return supervisor;
}

test('a role that dies is restarted every time', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const supervisor = supervised(t, [role('a', journal)]);
  const pids = new Set<number>();
  for (const count of [1, 2, 3]) {
    await until(`start ${count}`, async () => (await linesOf(journal)).length === count);
    const pid = supervisor.pid('a');
    assert(pid !== undefined);
    pids.add(pid);
    process.kill(pid, 'SIGKILL');
  }
  assert.equal(pids.size, 3);
});

test('a role that dies again and again is started again within a second each time, and the others run on', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const waits_ms: number[] = [];
  const hearing = createLog('test', 'silent');
  hearing.error = (said: object) => void waits_ms.push((said as { wait_ms: number }).wait_ms);
  const supervisor = supervise({
    roles: [role('a', journal), { name: 'b', args: ['-e', 'process.exit(1)'] }],
    env: { PATH: '/usr/bin:/bin' },
    log: hearing,
  });
  cleanUp(t, () => supervisor.stop());
  await until('it has died seven times', () => waits_ms.length === 7, { timeout_ms: 60_000 });
  assert.ok(Math.max(...waits_ms) <= 1_000, waits_ms.join());
  assert.equal((await linesOf(journal)).length, 1, 'the other was started once');
  assert.equal(supervisor.pid('a'), await pidIn(journal));
});

test('stop ends the roles in reverse order, and restarts none', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const supervisor = supervised(t, [role('a', journal), role('b', journal), role('c', journal)]);
  await until('all run', async () => (await linesOf(journal)).length === 3);
  const pids = ['a', 'b', 'c'].map((name) => supervisor.pid(name) ?? 0);
  await supervisor.stop();
  assert.deepEqual((await linesOf(journal)).slice(3), ['c asked', 'b asked', 'a asked']);
  assert.deepEqual(pids.map(isAlive), [false, false, false]);
});

test('a role that ignores SIGTERM is killed after its grace period', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const supervisor = supervised(t, [role('deaf', journal, '')], { grace_ms: 50 });
  await until('it runs', async () => (await linesOf(journal)).length === 1);
  const pid = supervisor.pid('deaf') ?? 0;
  await supervisor.stop();
  assert.equal(isAlive(pid), false);
  assert.equal((await linesOf(journal)).at(-1), 'deaf asked');
});

test('kill ends a stop that waits', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const supervisor = supervised(t, [role('a', journal, ''), role('b', journal, '')], { grace_ms: 600_000 });
  await until('both run', async () => (await linesOf(journal)).length === 2);
  const stopped = supervisor.stop();
  await until('b is asked', async () => (await linesOf(journal)).includes('b asked'));
  supervisor.kill();
  await stopped;
});

test('a role that refuses its settings at its first start is reported, and not restarted', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const refusing = { name: 'b', args: ['-e', 'process.exit(2)'] };
  const supervisor = supervised(t, [role('a', journal), refusing]);
  assert.equal(await supervisor.configuration_error, 'b');
  assert.equal(supervisor.pid('b'), undefined);
});

/** A launcher with one role, as a process of its own. It says each SIGINT. @param apart_ms between two that are not one */
function launcher(child: RoleSpec, apart_ms = 0): string {
  return `
    import { createLog } from 'SRC/shared/log.ts';
    import { supervise, superviseUntilSignal } from 'SRC/launcher/supervise.ts';
    const supervisor = supervise({
      roles: [${JSON.stringify(child)}], env: process.env, log: createLog('test', 'silent'),
      timing: { grace_ms: 600000 },
    });
    const ended = superviseUntilSignal(supervisor, () => console.log('stopping'), ${apart_ms});
    process.on('SIGINT', () => console.log('SIGINT'));
    process.exitCode = await ended;`;
}

async function pidIn(journal: string): Promise<number> {
  const line = await until('the role runs', async () =>
    (await linesOf(journal)).find((text) => / up \d+$/.test(text)),
  );
  return Number(line.split(' ').at(-1));
}

test('SIGTERM stops the roles and ends the launcher with 0', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const { pid, ended } = runScript(t, launcher(role('a', journal)));
  const role_pid = await pidIn(journal);
  cleanUp(t, () => kill(role_pid));
  process.kill(pid, 'SIGTERM');
  assert.equal((await ended).code, 0);
  assert.equal((await linesOf(journal)).at(-1), 'a asked');
  assert.equal(isAlive(role_pid), false);
});

test('a second SIGINT kills a role that hangs', async (t) => {
  const journal = join(await temporaryFolder(t), 'journal');
  const { pid, ended } = runScript(t, launcher(role('a', journal, '')));
  const role_pid = await pidIn(journal);
  cleanUp(t, () => kill(role_pid));
  process.kill(pid, 'SIGINT');
  await until('the role is asked', async () => (await linesOf(journal)).includes('a asked'));
  process.kill(pid, 'SIGINT');
  assert.equal((await ended).code, 0);
  assert.equal(isAlive(role_pid), false);
});

test('one Ctrl-C that arrives twice, as under npm, kills no role', async (t) => {
  const folder = await temporaryFolder(t);
  const [journal, heard] = [join(folder, 'journal'), join(folder, 'heard')];
  // It ends once both signals were heard, unless the second one has killed it.
  const slow = `setInterval(() => existsSync('${heard}') && (note('ended'), process.exit(0)), 10)`;
  const child = role('a', journal, `import('node:fs').then(({ existsSync }) => { ${slow}; })`);
  const { pid, ended, output } = runScript(t, launcher(child, 600_000));
  const role_pid = await pidIn(journal);
  cleanUp(t, () => kill(role_pid));
  for (const count of [1, 2]) {
    process.kill(pid, 'SIGINT');
    await until('it is heard', () => output().match(/SIGINT/g)?.length === count);
  }
  await writeFile(heard, '');
  assert.equal((await ended).code, 0);
  assert.equal((await linesOf(journal)).at(-1), 'a ended');
});

test('a launcher whose role refuses its settings ends with 2', async (t) => {
  const { ended } = runScript(t, launcher({ name: 'a', args: ['-e', 'process.exit(2)'] }));
  assert.equal((await ended).code, 2);
});

for (const [what, does] of [
  ['ends by itself', 'process.exit(0);'],
  ['is ended if it would not', ''],
] as const) {
  test(`a role notices that its launcher was killed, and ${what}`, async (t) => {
    const journal = join(await temporaryFolder(t), 'journal');
    const code = `
      import { appendFileSync } from 'node:fs';
      import { exitWithParent } from 'SRC/launcher/supervise.ts';
      exitWithParent(() => { appendFileSync(${JSON.stringify(journal)}, 'orphaned\\n'); ${does} }, 100);
      setInterval(() => {}, 1000);
      appendFileSync(${JSON.stringify(journal)}, 'a up ' + process.pid + '\\n');`;
    const { pid } = runScript(t, launcher({ name: 'a', args: scriptArgs(code) }));
    const role_pid = await pidIn(journal);
    cleanUp(t, () => kill(role_pid));
    process.kill(pid, 'SIGKILL');
    await until('the role has ended', () => !isAlive(role_pid));
    assert.equal((await linesOf(journal)).at(-1), 'orphaned');
  });
}
