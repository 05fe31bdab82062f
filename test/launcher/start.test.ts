/** `npm start` as a whole, in a project folder with a small role and a dummy recipe. */
import assert from 'node:assert/strict';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { pathsIn } from '../../src/config/paths.ts';
import { runningServer, stopServer } from '../../src/launcher/embedded-postgres.ts';
import { announceWhenReady } from '../../src/launcher/ready.ts';
import { isAlive } from '../../src/launcher/run-command.ts';
import { configOrRefuse } from '../../src/launcher/start.ts';
import { ownPort } from '../support/own-ports.ts';
import { copyDatabase } from '../support/seeds.ts';
import { until } from '../support/waiting.ts';
import { AS_ROOT, cleanUp, kill, runScript, type Script, SRC, temporaryFolder } from './processes.ts';

const ROLE = `
  import { createServer } from 'node:http';
  import { exitWithParent } from '${SRC}/launcher/supervise.ts';
  const port = Number(process.env.BERTH_LISTEN.split(':')[1]);
  createServer((_, response) => response.end(process.pid + ' ' + process.env.DATABASE_URL)).listen(port, '127.0.0.1');
  exitWithParent(() => process.exit(0));
  process.on('SIGTERM', () => process.exit(0));`;

async function projectFolder(t: TestContext): Promise<string> {
  const project = await temporaryFolder(t);
  for (const folder of ['bin', 'guest']) await mkdir(join(project, folder));
  await writeFile(join(project, 'bin', 'debian-packages.txt'), 'acl setfacl\n');
  const version = 'c'.repeat(64);
  await writeFile(
    join(project, 'guest', 'build.sh'),
    `[ "$1" = --version ] || { mkdir -p "$1"; echo '{"version":"${version}","size_bytes":2}' > "$1/manifest.json"
for file in vmlinuz initrd.img rootfs.img; do echo x > "$1/$file"; done; }\necho ${version}\n`,
  );
  await writeFile(join(project, 'role.mjs'), ROLE);
  const cluster = join(pathsIn(join(project, 'data')).postgres, 'cluster');
  cleanUp(t, async () => {
    const running = await runningServer(cluster);
    if (running !== undefined) await stopServer(running.pid);
  });
  return project;
}

/** Like {@link projectFolder}, with a database, as after an earlier start. It saves the time of initdb. */
async function usedProjectFolder(t: TestContext): Promise<string> {
  const project = await projectFolder(t);
  await copyDatabase(pathsIn(join(project, 'data')));
  return project;
}

function launch(t: TestContext, project: string, settings: Record<string, string>): Script {
  const code = `
    import { createLog } from 'SRC/shared/log.ts';
    import { announceWhenReady } from 'SRC/launcher/ready.ts';
    import { configOrRefuse, start } from 'SRC/launcher/start.ts';
    import { refuse, sayOnStdout, StartError } from 'SRC/launcher/start-error.ts';
    try {
      const env = { ...process.env, ...${JSON.stringify(settings)} };
      const project_dir = ${JSON.stringify(project)};
      const config = configOrRefuse(env, project_dir);
      process.exitCode = await start({
        config, env, project_dir, say: sayOnStdout, log: createLog('launcher', 'silent'),
        roles: [{ name: 'api', args: [project_dir + '/role.mjs'] }],
        started: (_, ended) => void announceWhenReady(config, ended, (line) => process.stdout.write(line), env),
      });
    } catch (error) {
      if (!(error instanceof StartError)) throw error;
      process.exitCode = refuse(error);
    }`;
  return runScript(t, code);
}

async function ready(script: Script, port: number): Promise<{ pid: number; database_url: string }> {
  await until(`it is ready (${script.pid})`, () => {
    assert(script.child.exitCode === null, script.output());
    return script.output().includes(`berth ready at http://127.0.0.1:${port}\n`);
  });
  const [pid, database_url = ''] = (await (await fetch(`http://127.0.0.1:${port}/`)).text()).split(' ');
  return { pid: Number(pid), database_url };
}

test('starts everything, refuses a second start, and stops everything on SIGTERM', AS_ROOT, async (t) => {
  const project = await projectFolder(t);
  const paths = pathsIn(join(project, 'data'));
  const port = await ownPort();
  const settings = { BERTH_LISTEN: `127.0.0.1:${port}` };
  const first = launch(t, project, settings);
  const role = await ready(first, port);
  cleanUp(t, () => kill(role.pid));
  assert.match(role.database_url, /^postgresql:\/\/berth@localhost/);
  assert.match((await readFile(paths.secret_key, 'utf8')).trim(), /^[0-9a-f]{64}$/);

  const second = await launch(t, project, settings).ended;
  assert.deepEqual(second, {
    code: 2,
    signal: null,
    output: `berth: another berth (pid ${first.pid}) already runs on this data folder\n`,
  });

  process.kill(first.pid, 'SIGTERM');
  assert.equal((await first.ended).code, 0);
  assert.equal(isAlive(role.pid), false);
  assert.equal(await runningServer(join(paths.postgres, 'cluster')), undefined);
});

test('a host of a fleet notifies systemd that it is ready', async (t) => {
  const folder = await temporaryFolder(t);
  const told = join(folder, 'told');
  await writeFile(join(folder, 'systemd-notify'), `#!/bin/sh\necho "$@" > ${told}\n`, { mode: 0o755 });
  const settings = {
    BERTH_CONTROL_PLANE: 'https://berth.example.org:7500',
    BERTH_HOST_TOKEN_FILE: join(folder, 'token'),
  };
  const env = { NOTIFY_SOCKET: '/run/no-socket', PATH: `${folder}:${process.env['PATH']}` };
  let said = '';
  const write = (line: string) => {
    said += line;
  };
  const config = configOrRefuse(settings, folder);
  assert.equal(await announceWhenReady(config, AbortSignal.timeout(60_000), write, env), true);
  assert.equal(said, 'berth: this machine is a host of https://berth.example.org:7500\n');
  assert.match(await readFile(told, 'utf8'), /--ready/);
});

test('the first login is printed last, and systemd is notified that it is ready', AS_ROOT, async (t) => {
  const project = await usedProjectFolder(t);
  const { first_login } = pathsIn(join(project, 'data'));
  const login = { url: 'http://127.0.0.1:1', email: 'ada@localhost', password: 'generated' };
  const keep = `import { writeFileSync } from 'node:fs';
    writeFileSync(${JSON.stringify(first_login)}, ${JSON.stringify(JSON.stringify(login))});`;
  await writeFile(join(project, 'role.mjs'), keep + ROLE);
  const told = join(project, 'told');
  await writeFile(join(project, 'bin', 'systemd-notify'), `#!/bin/sh\necho "$@" > ${told}\n`, {
    mode: 0o755,
  });
  const port = await ownPort();
  const settings = {
    BERTH_LISTEN: `127.0.0.1:${port}`,
    PATH: `${join(project, 'bin')}:${process.env['PATH']}`,
  };
  for (const [more, password] of [
    [{ NOTIFY_SOCKET: '/run/no-socket' }, `generated, shown this once; it is kept in ${first_login}`],
    [{ JOURNAL_STREAM: '8:1' }, `in ${first_login}`],
  ] as const) {
    const script = launch(t, project, { ...settings, ...more });
    await ready(script, port);
    const line = await until(
      'it is told',
      () => /^berth: first administrator: .*$/m.exec(script.output())?.[0],
    );
    assert.equal(line, `berth: first administrator: ada@localhost, password: ${password}`);
    if ('NOTIFY_SOCKET' in more) {
      await until('systemd is told', async () => (await readFile(told, 'utf8').catch(() => '')) !== '');
    }
    process.kill(script.pid, 'SIGTERM');
    assert.equal((await script.ended).code, 0);
    await rm(first_login);
  }
  assert.equal(await readFile(told, 'utf8'), '--ready --status=ready\n');
});

test('after a SIGKILL of the launcher the next start adopts what it left', AS_ROOT, async (t) => {
  const project = await usedProjectFolder(t);
  const cluster = join(pathsIn(join(project, 'data')).postgres, 'cluster');
  const port = await ownPort();
  const settings = { BERTH_LISTEN: `127.0.0.1:${port}` };
  const first = launch(t, project, settings);
  const role = await ready(first, port);
  cleanUp(t, () => kill(role.pid));
  const postgres = await runningServer(cluster);
  process.kill(first.pid, 'SIGKILL');
  const second = launch(t, project, settings);
  const next = await ready(second, port);
  cleanUp(t, () => kill(next.pid));
  assert.notEqual(next.pid, role.pid);
  assert.equal((await runningServer(cluster))?.pid, postgres?.pid, 'the database went on');
  process.kill(second.pid, 'SIGTERM');
  assert.equal((await second.ended).code, 0);
});

test('bad settings end with 2 and a line each, before anything is created', async (t) => {
  const project = await projectFolder(t);
  const { code, output } = await launch(t, project, { BERTH_ACCEL: 'x', BERTH_LISTN: 'y' }).ended;
  assert.equal(code, 2);
  assert.deepEqual(output.split('\n'), [
    'berth: BERTH_ACCEL: "x" is not valid; expected one of auto, kvm, tcg',
    'berth: BERTH_LISTN is unknown; did you mean BERTH_LISTEN?',
    '',
  ]);
  await assert.rejects(readFile(join(project, 'data')), { code: 'ENOENT' });
});

test('an incomplete OpenID provider ends with 2 and a line each, without its secret', async (t) => {
  const project = await projectFolder(t);
  const settings = { BERTH_OIDC_ISSUER: 'https://id.example.org', BERTH_OIDC_CLIENT_SECRET: 'hidden-secret' };
  const { code, output } = await launch(t, project, { ...settings, BERTH_OIDC_GROUPS: 'staff' }).ended;
  assert.equal(code, 2);
  assert.match(output, /^berth: BERTH_OIDC_CLIENT_ID is missing; BERTH_OIDC_ISSUER is set/m);
  assert.match(output, /^berth: BERTH_OIDC_GROUPS: .* expected GROUP=ORGANISATION:ROLE/m);
  assert.doesNotMatch(output, /hidden-secret/);
  const alone = await launch(t, project, { BERTH_PASSWORD_LOGIN: 'off' }).ended;
  assert.equal(alone.code, 2);
  assert.match(alone.output, /^berth: BERTH_OIDC_ISSUER is missing; BERTH_PASSWORD_LOGIN is set/);
  await assert.rejects(readFile(join(project, 'data')), { code: 'ENOENT' });
});

test('an unreadable TLS certificate ends with 2 and a line', async (t) => {
  const project = await projectFolder(t);
  const settings = { BERTH_TLS_CERT: 'no.pem', BERTH_TLS_KEY: 'no.key' };
  const { code, output } = await launch(t, project, settings).ended;
  assert.equal(code, 2);
  assert.match(output, /^berth: BERTH_TLS_CERT: \S+no\.pem cannot be read: ENOENT[^\n]*\n$/);
});
