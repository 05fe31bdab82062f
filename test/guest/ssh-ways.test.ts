/** Everything that OpenSSH's programs do, with one guest through the ingress. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { skProvider } from '../support/sk-provider.ts';
import { type KeyKind, runProgram, SshClient } from '../support/ssh-client.ts';
import { until } from '../support/waiting.ts';

const SIZE = 5 * 2 ** 20;
/** Debian 12's ssh-audit is older than these: a post-quantum exchange, and sshd's word that it has the Terrapin fix. */
const BEYOND_ITS_TIME = [
  /sntrup761x25519-sha512@openssh\.com +-- \[warn\] using experimental algorithm/,
  /kex-strict-s-v00@openssh\.com +-- \[warn\] unknown algorithm/,
];

describe('SSH to a guest', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let content: Buffer;
  let local: string;
  const here = (name: string) => join(berth.data_dir, name);

  before(async () => {
    berth = await borrowInstallation();
    guest = await GuestInstance.running(berth, 'ways');
    content = randomBytes(SIZE);
    local = here('content');
    writeFileSync(local, content);
  });
  after(returnInstallation);

  const program = async (name: string, args: readonly string[], input = '') => {
    const result = await runProgram(name, args, input);
    assert.equal(result.code, 0, `${name}: ${result.stderr}${result.stdout}`);
    return result;
  };
  const remote = () => `${guest.target.user}@${guest.target.host}`;

  test('a strict first connection works with the known_hosts line, and only with it', async () => {
    assert.equal(await guest.sh('hostname'), 'ways');
    const preferred = { options: ['KexAlgorithms=+curve25519-sha256'] };
    assert.equal(
      (await berth.ssh.run(guest.target, 'true', preferred)).code,
      0,
      'with the preferred algorithms',
    );
    const ignorant = new SshClient(berth.data_dir, 'ignorant');
    const refused = await ignorant.run(guest.target, 'true');
    assert.equal(refused.code, 255);
    assert.match(refused.stderr, /Host key verification failed/);
  });

  test('sftp copies a file to the guest and back', async () => {
    const port = ['-P', String(guest.target.port)];
    const batch = `put ${local} /srv/by-sftp\nget /srv/by-sftp ${here('back-sftp')}\n`;
    await program('sftp', [...berth.ssh.options(), ...port, '-b', '-', remote()], batch);
    assert(readFileSync(here('back-sftp')).equals(content));
  });

  test('scp copies a file to the guest and back, by both of its protocols', async () => {
    for (const flags of [[], ['-O']]) {
      const base = [...berth.ssh.options(), '-P', String(guest.target.port), ...flags];
      await program('scp', [...base, local, `${remote()}:/srv/by-scp`]);
      await program('scp', [...base, `${remote()}:/srv/by-scp`, here('back-scp')]);
      assert(readFileSync(here('back-scp')).equals(content));
    }
  });

  test('rsync copies files to the guest and back', async () => {
    mkdirSync(here('tree'));
    for (let i = 0; i < 20; i++) writeFileSync(here(`tree/${i}`), randomBytes(1_000));
    const shell = `ssh ${berth.ssh.options().join(' ')} -p ${guest.target.port}`;
    await program('rsync', ['-a', '-e', shell, here('tree/'), `${remote()}:/srv/tree/`]);
    await program('rsync', ['-a', '-e', shell, `${remote()}:/srv/tree/`, here('tree-back/')]);
    const [there, back] = [here('tree/7'), here('tree-back/7')].map((path) => readFileSync(path));
    assert(there?.equals(back as Buffer));
  });

  test('a local port is forwarded into the guest', async () => {
    const port = await ownPort();
    const options = ['ExitOnForwardFailure=yes'];
    const forwarding = berth.ssh.start(guest.target, {
      flags: ['-N', '-L', `127.0.0.1:${port}:127.0.0.1:22`],
      options,
    });
    try {
      const greeting = await until('the far end greets', async () => {
        const socket = connect({ host: '127.0.0.1', port });
        try {
          const [part] = await once(socket, 'data');
          return String(part);
        } catch {
          return undefined;
        } finally {
          socket.destroy();
        }
      });
      assert.match(greeting, /^SSH-2\.0-OpenSSH/);
    } finally {
      forwarding.kill();
    }
  });

  test('a port of the guest is forwarded to the client', async () => {
    const server = createServer((socket) => socket.end('from outside'));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const address = server.address();
    assert(address !== null && typeof address === 'object');
    try {
      const forward = `RemoteForward=127.0.0.1:7777 127.0.0.1:${address.port}`;
      const command = 'exec 3<>/dev/tcp/127.0.0.1/7777 && cat <&3';
      const result = await berth.ssh.run(guest.target, `bash -c '${command}'`, { options: [forward] });
      assert.equal(result.stdout, 'from outside', result.stderr);
    } finally {
      server.close();
    }
  });

  test('a forwarded ssh agent works in the guest', async () => {
    const socket = here('agent.sock');
    const agent = await runProgram('ssh-agent', ['-a', socket, '-s']);
    const pid = Number(/SSH_AGENT_PID=(\d+)/.exec(agent.stdout)?.[1]);
    try {
      const env = { SSH_AUTH_SOCK: socket };
      const added = await runProgram('ssh-add', ['-q', berth.ssh.key_path], '', env);
      assert.equal(added.code, 0, added.stderr);
      const options = [`IdentityAgent=${socket}`, 'ForwardAgent=yes'];
      const keys = await berth.ssh.run(guest.target, 'ssh-add -L', { options });
      assert(keys.stdout.includes(berth.ssh.public_key.split(' ')[1] as string), keys.stderr);
      const onward = 'ssh -o StrictHostKeyChecking=no -o BatchMode=yes root@127.0.0.1 echo through';
      assert.equal((await berth.ssh.run(guest.target, onward, { options })).stdout, 'through\n');
    } finally {
      process.kill(pid);
    }
  });

  test('keys of every type that the API accepts can log in', async () => {
    const provider = await skProvider();
    const kinds: readonly KeyKind[] = [
      { type: 'rsa', bits: 2048 },
      { type: 'ecdsa', bits: 521 },
      { type: 'ed25519-sk', provider },
      { type: 'ecdsa-sk', provider },
    ];
    for (const kind of kinds) {
      const client = new SshClient(berth.data_dir, `key-${kind.type}`, kind);
      client.know(guest.target.known_hosts);
      const key = { name: kind.type, public_key: client.public_key };
      await berth.client.expect(201, 'POST', '/v1/me/ssh-keys', key);
      const got_in = async () => {
        const result = await client.run(guest.target, 'echo in');
        return result.stdout === 'in\n' || (!result.stderr.includes('Permission denied') && result.stderr);
      };
      assert.equal(await until(`${kind.type} gets in`, got_in), true);
    }
  });

  test('no password is accepted', async () => {
    await guest.sh('echo root:known | chpasswd');
    for (const method of ['password', 'keyboard-interactive', 'none', 'hostbased', 'gssapi-with-mic']) {
      const options = ['PubkeyAuthentication=no', `PreferredAuthentications=${method}`, 'BatchMode=no'];
      const askpass = here('askpass');
      writeFileSync(askpass, '#!/bin/sh\necho known\n', { mode: 0o700 });
      const args = [...berth.ssh.options(options), '-p', String(guest.target.port), remote(), 'true'];
      const env = { SSH_ASKPASS: askpass, SSH_ASKPASS_REQUIRE: 'force' };
      const result = await runProgram('ssh', args, '', env);
      assert.equal(result.code, 255, method);
      assert.match(result.stderr, /Permission denied \(publickey\)/, method);
    }
  });

  test('hundreds of connections without a login lock nobody out', async () => {
    const { host, port } = guest.target;
    const half_open = Array.from({ length: 300 }, () => {
      const socket = connect({ host, port });
      socket.on('error', () => undefined).on('close', () => socket.destroy());
      return socket;
    });
    try {
      await Promise.all(
        half_open.map(async (socket) => {
          await Promise.race([once(socket, 'connect'), once(socket, 'close')]);
          socket.write('SSH-2.0-half-open\r\n');
        }),
      );
      for (let times = 0; times < 5; times++) {
        const result = await berth.ssh.run(guest.target, 'echo in');
        assert.equal(result.stdout, 'in\n', result.stderr);
      }
    } finally {
      for (const socket of half_open) socket.destroy();
    }
  });

  test('ssh-audit reports no failure and no warning', async () => {
    const { host, port } = guest.target;
    const { stdout } = await runProgram('ssh-audit', ['--no-colors', '--port', String(port), host]);
    const found = stdout.split('\n').filter((line) => /\[(fail|warn)\]/.test(line));
    assert.match(stdout, /\(key\) ssh-ed25519/, stdout);
    assert.deepEqual(
      found.filter((line) => !BEYOND_ITS_TIME.some((known) => known.test(line))),
      [],
    );
  });
});
