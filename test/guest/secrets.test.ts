/** What a guest has of its secrets: placeholders and the certificate in every new session, through everything that a VM may go through. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { until, untilWorks } from '../support/waiting.ts';

/** Promised: after 10 s a new session has a change. On a busy machine each look may take seconds. */
const VISIBLE = { timeout_ms: 30_000, every_ms: 50 };
const HOSTS = ['api.example.com'];
const PLACEHOLDER = /^berth-secret-[0-9a-f]{32}$/;
const CERTIFICATES = ['NODE_EXTRA_CA_CERTS', 'REQUESTS_CA_BUNDLE', 'SSL_CERT_FILE'];
/** Debian's programs look here, whatever their environment. */
const TRUSTED = 'openssl verify -CAfile /etc/ssl/certs/ca-certificates.crt /run/berth/secrets-ca.pem';

type Environment = Readonly<Record<string, string>>;

function environmentOf(text: string): Environment {
  const names = /^(BERTH_SECRET_[A-Z0-9_]+|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE|SSL_CERT_FILE)=(.*)$/;
  const lines = text.split(/\r?\n/).flatMap((line) => {
    const [, name, value] = names.exec(line) ?? [];
    return name === undefined ? [] : [[name, value ?? ''] as const];
  });
  return Object.fromEntries(lines);
}

describe('secrets in a guest', { skip: CANNOT_BOOT_GUESTS, timeout: 900_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'web');
  });
  after(() => berth?.dispose());

  const set = (name: string, value = randomBytes(16).toString('hex'), of = guest) =>
    berth.client.expect(204, 'PUT', `${of.path}/secrets/${name}`, { value, hosts: HOSTS });
  const remove = (name: string, of = guest) =>
    berth.client.expect(204, 'DELETE', `${of.path}/secrets/${name}`);

  /** Of a new connection. */
  const command = async (of = guest) => environmentOf((await berth.ssh.run(of.target, 'env')).stdout);
  const login = async (of = guest) => {
    const shell = berth.ssh.start(of.target, { flags: ['-tt'] });
    shell.send('env; echo the-$((40+2))-end\n');
    await until('the shell has answered', () => shell.printed().includes('the-42-end'));
    shell.send('exit\n');
    await shell.ended;
    return environmentOf(shell.printed());
  };
  const exec = async (of = guest, words: readonly string[] = ['env']) => {
    const body = { command: words };
    const run = () => berth.client.expect<{ stdout: string }>(200, 'POST', `${of.path}/vm/exec`, body);
    // For a moment after its agent was killed a host runs no commands.
    return environmentOf((await untilWorks('a command runs', run)).stdout);
  };
  /** By the exec supervisor of the guest. */
  const streamed = async (of = guest, user = 'root') => {
    const body = { command: ['env'], user };
    const execs = `${of.path}/execs`;
    const { id } = await berth.client.expect<{ id: string }>(201, 'POST', execs, body);
    await until('it has ended', async () => {
      const { state } = await berth.client.expect<{ state: string }>(200, 'GET', `${execs}/${id}`);
      return state === 'exited';
    });
    return environmentOf(await berth.client.expect<string>(200, 'GET', `${execs}/${id}/output`));
  };
  /** A shell as on the console: without anything that sshd or the guest agent may have set. */
  const consoleLogin = (of = guest) =>
    exec(of, ['env', '-i', 'HOME=/root', 'TERM=dumb', '/bin/bash', '-l', '-c', 'env']);
  const secretNames = (environment: Environment) =>
    Object.keys(environment)
      .filter((name) => name.startsWith('BERTH_SECRET_'))
      .map((name) => name.slice('BERTH_SECRET_'.length))
      .sort();
  const visible = (names: readonly string[], of = guest) => {
    const same = async () => {
      const [one, other] = [await command(of), await exec(of)];
      return [one, other].every((each) => secretNames(each).join() === names.join()) && one;
    };
    return until(`sessions have ${names.join() || 'no secrets'}`, same, VISIBLE);
  };
  const isTrusted = (of = guest) =>
    until('the certificate is trusted', async () => (await berth.ssh.run(of.target, TRUSTED)).code === 0, {
      timeout_ms: 30_000,
    });

  /** How many certificates the guest trusts, and its files about ours. */
  const trusts = (of = guest) =>
    of.sh(
      'grep -c BEGIN /etc/ssl/certs/ca-certificates.crt; ls /etc/berth-secrets-ca.pem /etc/ssl/certs/berth-* /usr/local/share/ca-certificates/* 2> /dev/null; true',
    );
  let at_first: string;
  const forgets = (of: GuestInstance) =>
    until('the certificate is forgotten', async () => (await trusts(of)) === at_first, {
      timeout_ms: 30_000,
    });

  test('without secrets a guest has neither variables nor certificate', async () => {
    const sessions = [await command(), await exec(), await streamed(), await consoleLogin()];
    assert.deepEqual(sessions, [{}, {}, {}, {}]);
    at_first = await trusts();
    assert.match(at_first, /^1\d\d$/);
    assert.equal(await guest.sh('ls /run/berth/*.pem /etc/berth-secrets-ca.pem 2> /dev/null | wc -l'), '0');
  });

  test('a new session of any kind has the placeholder, and where the certificates are', async () => {
    await set('API_KEY');
    const environment = await visible(['API_KEY']);
    assert.match(environment['BERTH_SECRET_API_KEY'] ?? '', PLACEHOLDER);
    for (const name of CERTIFICATES)
      assert.equal(await guest.sh(`test -s ${environment[name]} && echo yes`), 'yes');
    assert.deepEqual(await login(), environment);
    assert.deepEqual(await exec(), environment);
    assert.deepEqual(await streamed(), environment);
    assert.deepEqual(await streamed(guest, 'nobody'), environment);
    assert.deepEqual(await consoleLogin(), environment);
    await guest.sh('id app > /dev/null 2>&1 || useradd -m -s /bin/sh app');
    assert.deepEqual(await exec(guest, ['su', '-', 'app', '-c', 'env']), environment);
  });

  test('the certificate is in the store of the distribution, beside its own certificates', async () => {
    await isTrusted();
    assert.equal((await trusts()).split('\n')[0], String(Number(at_first) + 1));
    assert.match(await guest.sh('openssl verify /etc/berth-secrets-ca.pem'), /OK$/);
    assert.match(
      await guest.sh('openssl x509 -noout -subject -in /run/berth/secrets-ca.pem'),
      /Berth secrets of inst_/,
    );
  });

  test('a replaced value keeps the placeholder; a second secret has its own', async () => {
    const before_change = (await command())['BERTH_SECRET_API_KEY'];
    await set('API_KEY');
    await set('OTHER');
    const environment = await visible(['API_KEY', 'OTHER']);
    assert.equal(environment['BERTH_SECRET_API_KEY'], before_change);
    assert.notEqual(environment['BERTH_SECRET_OTHER'], before_change);
  });

  test('a change while the agent is away reaches the guest; one that it made before stays', async () => {
    const environment = await command();
    await berth.kill('agent');
    await set('LATER');
    await berth.recovered('agent');
    // It has adopted the guest.
    await exec();
    const later = await visible(['API_KEY', 'LATER', 'OTHER']);
    assert.equal(later['BERTH_SECRET_API_KEY'], environment['BERTH_SECRET_API_KEY']);
    await remove('LATER');
    await visible(['API_KEY', 'OTHER']);
  });

  test('a restart, and a start from the object store, have the same from the first session on', async () => {
    const environment = await command();
    await guest.restart();
    assert.deepEqual([await command(), await exec()], [environment, environment]);
    await guest.moveThroughStore();
    assert.deepEqual(
      [await command(), await exec(), await consoleLogin()],
      [environment, environment, environment],
    );
    await isTrusted();
  });

  test('a resumed VM has what was set and removed while it was suspended', async () => {
    const environment = await command();
    await guest.suspend();
    await set('MEANWHILE');
    await remove('OTHER');
    await guest.start();
    const resumed = await command();
    assert.deepEqual(await streamed(), resumed);
    assert.deepEqual(secretNames(resumed), ['API_KEY', 'MEANWHILE']);
    assert.equal(resumed['BERTH_SECRET_API_KEY'], environment['BERTH_SECRET_API_KEY']);
    assert.deepEqual(await exec(), resumed);
  });

  test('a fork has the variables only if it was made with the values', async () => {
    await guest.flush();
    const body = { name: 'with', secrets: true };
    const { id } = await berth.client.expect<{ id: string }>(201, 'POST', `${guest.path}/fork`, body);
    const without = await guest.fork('without');
    const environment = await command();
    await guest.stop();
    const having = GuestInstance.of(berth, id);
    await having.start();
    await having.learnHost();
    assert.deepEqual([await command(having), await exec(having)], [environment, environment]);
    await having.stop();
    await without.start();
    await without.learnHost();
    assert.deepEqual([await command(without), await exec(without)], [{}, {}]);
    // The parent's disk had it.
    await forgets(without);
    await without.stop();
    await guest.start();
  });

  test('after the last one is removed, new sessions have no variables, and the certificate is trusted no longer', async () => {
    const open = berth.ssh.start(guest.target, { command: 'sh' });
    open.send('echo $SSL_CERT_FILE\n');
    await until('the session has its variables', () => open.printed().includes('/run/berth/'));
    await remove('API_KEY');
    await remove('MEANWHILE');
    await visible([]);
    await forgets(guest);
    // What runs already keeps its environment, and still finds the distribution's certificates.
    open.send('test -s $SSL_CERT_FILE && echo still-$((40+2))\n');
    await until('its certificates are there', () => open.printed().includes('still-42'));
    open.send('exit\n');
    await open.ended;
  });

  test('no process of Berth leaves memory in a core dump', () => {
    for (const role of ['control-plane', 'agent', 'ingress'] as const) {
      const filter = readFileSync(`/proc/${berth.role(role).pid}/coredump_filter`, 'latin1').trim();
      assert.equal(Number.parseInt(filter, 16), 0, role);
    }
  });
});
