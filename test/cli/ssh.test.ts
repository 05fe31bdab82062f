/** SSH keys, key sets and `berth ssh` on the command line, as processes against the API. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey, makeServiceKey, makeSshKey, type Person, randomPublicKey } from '../support/people.ts';
import { HOST_KEY } from '../support/scripted-agent.ts';
import { stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}

test('keys are registered from stdin, a file or ~/.ssh, listed, chosen for an instance, revoked', async () => {
  const { cli, who } = await somebody();
  const { name } = await api.instance(who);
  const [first, second] = [randomPublicKey(), randomPublicKey()];
  const added = await cli.run(['ssh-key', 'add'], `${first.line} ada@laptop\n`);
  assert.deepEqual(
    [added.code, added.out],
    [0, `ada@laptop (${first.fingerprint}) is registered for instances of this organisation.\n`],
  );
  const file = join(cli.home, 'desk.pub');
  writeFileSync(file, second.line);
  assert.match(await cli.done('ssh-key', 'add', file, '--name', 'desk', '-q'), /^key_\w+\n$/);
  const list = await cli.done('ssh-key', 'ls');
  assert.match(list, /^NAME +TYPE +FINGERPRINT +USED +ADDED +FOR +ID\n/);
  assert.match(list, /^desk +ssh-ed25519 +SHA256:\S+ +never .* this organisation +key_\w+$/m);
  assert.match(await cli.done('instance', 'ssh-keys', name), /all keys of its creator:\nNAME/);
  assert.match(
    await cli.done('instance', 'ssh-keys', name, '--set', 'desk'),
    /these keys:\nNAME.*\ndesk .*\n$/,
  );
  assert.match(await cli.done('instance', 'ssh-keys', name, '--none'), /None\. Nobody can log in\.\n$/);
  assert.equal((await cli.json<{ mode: string }>('instance', 'ssh-keys', name, '--account')).mode, 'account');
  assert.match(
    await cli.fails(3, 'instance', 'ssh-keys', name, '--set', 'nothing'),
    /no member of the organisation has an SSH key nothing\n {2}next: berth ssh-key ls/,
  );
  for (const two of [
    ['--none', '--set', 'desk'],
    ['--none', '--account'],
    ['--set', 'desk', '--account'],
  ]) {
    assert.match(await cli.fails(2, 'instance', 'ssh-keys', name, ...two), /exclude each other/);
  }
  assert.equal((await cli.json<{ mode: string }>('instance', 'ssh-keys', name)).mode, 'account');
  assert.equal(await cli.done('ssh-key', 'rm', 'desk'), 'Revoked desk.\n');
  const secret = await cli.run(['ssh-key', 'add', '-'], '-----BEGIN OPENSSH PRIVATE KEY-----\n');
  assert.equal(secret.code, 1);
  assert.match(secret.err, /private key, which must stay on your machine/);
});

test('a colleague is let in by the name or id of their key; of two of a name one’s own is meant', async () => {
  const { cli, who } = await somebody();
  const { name } = await api.instance(who);
  const [ada, bob] = [await api.person({ org_id: who.org_id }), await api.person({ org_id: who.org_id })];
  const [adas, bobs] = [await makeSshKey(api.db, ada.user_id), await makeSshKey(api.db, bob.user_id)];
  const set = (...keys: string[]) =>
    cli.done('instance', 'ssh-keys', name, '-q', ...keys.flatMap((each) => ['--set', each]));
  const several = await cli.fails(3, 'instance', 'ssh-keys', name, '--set', 'laptop');
  for (const { id, fingerprint } of [adas, bobs])
    assert.ok(several.includes(`${id} ${fingerprint}`), several);
  assert.equal(await set(adas.id), `${adas.id}\n`);
  const own = await makeSshKey(api.db, who.user_id);
  assert.equal(await set('laptop'), `${own.id}\n`);
  await api.db.updateTable('ssh_keys').set({ name: 'desk' }).where('id', '=', bobs.id).execute();
  assert.deepEqual((await set('laptop', 'desk')).split('\n').sort(), ['', bobs.id, own.id].sort());
  const robot = await makeServiceKey(api.db, who.org_id, '*');
  const program = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: robot.key });
  assert.equal(await program.done('instance', 'ssh-keys', name, '-q', '--set', 'desk'), `${bobs.id}\n`);
  const stranger = await makeSshKey(api.db, (await api.person()).user_id);
  await cli.fails(3, 'instance', 'ssh-keys', name, '--set', stranger.id);
});

test('up makes the public part of a private key that has none, and says that it changes no instance', async () => {
  const { cli, who } = await somebody();
  const { name, id } = await api.instance(who);
  const path = join(cli.home, '.ssh', 'id_ed25519');
  mkdirSync(join(cli.home, '.ssh'));
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', 'ada', '-f', path]);
  const line = readFileSync(`${path}.pub`, 'utf8');
  rmSync(`${path}.pub`);
  assert.match(
    await cli.fails(1, 'ssh-key', 'add'),
    /no public key in .*\n {2}next: ssh-keygen -y -f (\S+)\/id_ed25519 > \1\/id_ed25519\.pub/,
  );
  const going_up = cli.start(['up', name, '--cpus', '4']);
  await api.agent.assigned(id);
  assert.equal(readFileSync(`${path}.pub`, 'utf8'), line);
  assert.match(going_up.out(), /^ada \(SHA256:\S+\) is registered for instances of this organisation\.\n/);
  assert.match(going_up.err(), new RegExp(`${name} already exists .*berth set ${name}`));
  going_up.child.kill('SIGINT');
  assert.equal((await going_up.ended).code, 130);
});

test('several that go up at once find what one of them was quicker to make', async () => {
  const { cli } = await somebody();
  mkdirSync(join(cli.home, '.ssh'));
  writeFileSync(join(cli.home, '.ssh', 'id_ed25519.pub'), `${randomPublicKey().line} ada\n`);
  const going_up = Array.from({ length: 3 }, () => cli.start(['up', 'together', '--', 'true']));
  const { id } = await until('it is made', () =>
    api.db.selectFrom('instances').select('id').where('name', '=', 'together').executeTakeFirst(),
  );
  await api.agent.assigned(id);
  await api.agent.ready(id);
  const ran = await Promise.all(going_up.map(({ ended }) => ended));
  // What ssh ends with where nothing listens.
  for (const { code, err } of ran) assert.equal(code, 255, err);
  const said = ran.map(({ out }) => out).join('');
  for (const once of [/is registered/g, /Created together/g]) assert.equal(said.match(once)?.length, 1);
});

test('up leaves a private key that it cannot read as it is, and says what is missing', async () => {
  const { cli } = await somebody();
  mkdirSync(join(cli.home, '.ssh'));
  const path = join(cli.home, '.ssh', 'id_ed25519');
  writeFileSync(path, 'no key\n', { mode: 0o600 });
  assert.match(await cli.fails(1, 'up', 'web'), /could not be derived from it\n {2}next: ssh-keygen -y -f /);
  assert.equal(readFileSync(path, 'utf8'), 'no key\n');
});

test('ssh says before the boot that no key gets in', async () => {
  const { cli, who } = await somebody();
  const { name } = await api.instance(who);
  assert.match(await cli.fails(5, 'ssh', name), /accepts no SSH key\n {2}next: berth ssh-key add\n/);
});

test('ssh-config writes a block once, and one line into the person’s own file, which ssh understands', async () => {
  const { cli, who } = await somebody();
  const { name, id } = await api.instance(who);
  await cli.run(['ssh-key', 'add', '-'], randomPublicKey().line);
  await cli.done('start', '--no-wait', name);
  await api.agent.assigned(id);
  await api.agent.ready(id);
  for (let twice = 0; twice < 2; twice++) {
    // The home that the password file names is the one that ssh looks at; this one has to be named to it.
    const said = new RegExp(`^ssh -F \\S+/config ${name}\\.berth works now\\. \\(Without -F`);
    assert.match(await cli.done('ssh-config', name), said);
  }
  const own = readFileSync(join(cli.home, '.ssh', 'config'), 'utf8');
  assert.equal(own.match(/^Include/gm)?.length, 1);
  const blocks = readFileSync(join(cli.home, '.config', 'berth', 'ssh_config'), 'utf8');
  assert.equal(blocks.match(/^Host /gm)?.length, 1);
  assert.equal(await cli.done('ssh-config', '--print', name), blocks);
  const file = join(cli.home, '.ssh', 'config');
  const meant = execFileSync('ssh', ['-F', file, '-G', `${name}.berth`], { encoding: 'utf8' });
  const { body } = await api.as(who).get<{ port: number; known_hosts: string[] }>(`/v1/instances/${id}/ssh`);
  assert.match(meant, new RegExp(`^port ${body.port}$`, 'm'));
  assert.match(meant, /^stricthostkeychecking true$/m);
  const known = /^userknownhostsfile (.*)$/m.exec(meant)?.[1] ?? '';
  assert.equal(readFileSync(known, 'utf8'), body.known_hosts.map((line) => `${line}\n`).join(''));
});

test('ssh-config --no-start writes the permanent address of a stopped instance, and says when it works', async () => {
  const { cli, who } = await somebody();
  const { name, id, ssh } = await api.instance(who);
  const noStart = async () => (await cli.done('ssh-config', '--no-start', name)).split(' (Without')[0];
  assert.match((await noStart()) ?? '', /works once the host key is known: berth ssh-config \S+ starts/);
  await cli.done('start', '--no-wait', name);
  await api.agent.ready(id);
  await cli.done('stop', '--no-wait', name);
  await api.agent.stopped(id);
  assert.match(
    (await noStart()) ?? '',
    new RegExp(`works while ${name} runs. Start it: berth start ${name}$`),
  );
  await cli.done('set', name, '--wake');
  assert.match((await noStart()) ?? '', /works now: a connection starts the VM\.$/);
  const block = await cli.done('ssh-config', '--no-start', '--print', name);
  assert.match(block, new RegExp(`^ {2}HostName ${ssh.host}\n {2}Port ${ssh.port}\n {2}User root$`, 'm'));
  const known = /UserKnownHostsFile "(.*)"/.exec(block)?.[1] ?? '';
  assert.equal(readFileSync(known, 'utf8'), `[${ssh.host}]:${ssh.port} ${HOST_KEY.public_key}\n`);
  assert.equal((await stateOf(api, who, id)).state, 'stopped');
});
