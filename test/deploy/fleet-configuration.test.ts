/** What `deploy/` has for the machines of a fleet is accepted by the programs that read it. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { SETTINGS } from '../../src/config/settings.ts';
import { certificate } from '../support/certificate.ts';
import { skipWithout } from '../support/program.ts';

const run = promisify(execFile);
const DEPLOY = join(import.meta.dirname, '..', '..', 'deploy');
const textOf = (path: string) => readFile(join(DEPLOY, path), 'utf8');
const folder = await mkdtemp(join(tmpdir(), 'berth-deploy-'));
after(() => rm(folder, { recursive: true, force: true }));

test('systemd accepts each unit', skipWithout('systemd-analyze', 'systemd'), async () => {
  const units = join(folder, 'units');
  await mkdir(units);
  const names = await readdir(join(DEPLOY, 'systemd'));
  assert.ok(names.length >= 4);
  for (const name of names) {
    const unit = await textOf(`systemd/${name}`);
    assert.match(unit, /^ExecStart=\/usr\/bin\/berth [\w-]+$/m);
    await writeFile(join(units, name), unit.replace('/usr/bin/berth', '/bin/true'));
  }
  const paths = names.map((name) => join(units, name));
  const { stdout, stderr } = await run('systemd-analyze', ['verify', '--man=no', ...paths]);
  const ours = `${stdout}${stderr}`.split('\n').filter((line) => line.includes('berth-'));
  assert.deepEqual(ours, []);
});

test("a host's unit differs from that of one machine only in its words and its command", async () => {
  const hardening = (text: string) =>
    text.split('\n').filter((line) => /^[A-Z]\w+=/.test(line) && !OWN.test(line));
  const machine = await readFile(join(DEPLOY, '..', 'packaging', 'debian', 'berth.service'), 'utf8');
  assert.deepEqual(hardening(await textOf('systemd/berth-host.service')), hardening(machine));
});
const OWN = /^(?:Description|Documentation|Conflicts|ExecStart|EnvironmentFile)=/;

test('each setting that a unit or a document for operators of a fleet names exists', async () => {
  const docs = join(DEPLOY, '..', 'docs', 'operating');
  const files = [join(DEPLOY, 'systemd'), docs].map(async (of) =>
    (await readdir(of)).map((name) => join(of, name)),
  );
  for (const path of (await Promise.all(files)).flat()) {
    const named = (await readFile(path, 'utf8')).match(/\bBERTH_[A-Z0-9_]+(?=\b[^_…])/g) ?? [];
    const unknown = named.filter((each) => !KNOWN.includes(each));
    assert.deepEqual(unknown, [], path);
  }
});
/** With settings of roles of a fleet, and a variable of the tests. */
const KNOWN: readonly string[] = [
  ...SETTINGS,
  ...['BERTH_HOSTS_URL', 'BERTH_INGRESS_TOKEN_FILE', 'BERTH_SSH_LISTEN', 'BERTH_TEST_FAULTS'],
];

test('HAProxy accepts its configuration', skipWithout('haproxy', 'haproxy'), async (t) => {
  const pem = join(folder, 'berth.pem');
  const { key, cert } = await certificate(t, 'berth.example.org');
  await writeFile(pem, Buffer.concat([cert, key]));
  const path = join(folder, 'haproxy.cfg');
  await writeFile(path, (await textOf('haproxy/haproxy.cfg')).replace('/etc/haproxy/berth.pem', pem));
  await run('haproxy', ['-c', '-f', path]);
});

test('Patroni accepts its configuration', skipWithout('patroni', 'patroni postgresql-15'), async () => {
  const asked = run('patroni', ['--validate-config', join(DEPLOY, 'patroni', 'patroni.yml')]);
  const { stdout = '', stderr = '' } = await asked.catch(
    (error: { stdout?: string; stderr?: string }) => error,
  );
  // The addresses are those of other machines.
  const problems = `${stdout}${stderr}`
    .split('\n')
    .filter((line) => line !== '' && !/is already in use|is not reachable/.test(line));
  assert.deepEqual(problems, []);
});
