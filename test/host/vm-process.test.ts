/** QEMU as a process, with a machine of none: no image, no accelerator, no root. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync,
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, describe, test } from 'node:test';
import { prepareRuntimeDir, takeRuntimeDir, vmUser } from '../../src/host/qemu/confinement.ts';
import {
  boundQemuLog,
  findOrphans,
  identityOfProcess,
  isProcessAlive,
  killProcess,
  launchVm,
  onVmExit,
  type ProcessIdentity,
  QemuLaunchError,
  userOfProcess,
  type VmEnd,
  waitForExit,
} from '../../src/host/qemu/qemu-process.ts';
import { newId } from '../../src/shared/ids.ts';

const AS_ROOT = process.getuid?.() === 0 ? false : 'not root';
const USER = vmUser(17);

describe('launching QEMU', { timeout: 300_000 }, () => {
  const root = mkdtempSync(join(tmpdir(), 'bproc-'));
  const runtime_dir = join(root, 'vm');
  mkdirSync(runtime_dir);
  const log_path = join(root, 'qemu.log');
  const instance_id = newId('inst');
  const alive: ProcessIdentity[] = [];

  function options(...extra: string[]) {
    return {
      qemu_binary: 'qemu-system-x86_64',
      arguments: [
        ...[
          '-name',
          `guest=${instance_id}`,
          '-M',
          'none',
          '-nodefaults',
          '-no-user-config',
          '-display',
          'none',
          '-S',
        ],
        ...[
          '-msg',
          'timestamp=on',
          '-chardev',
          `socket,id=qmp,path=${runtime_dir}/qmp.sock,server=on,wait=off`,
        ],
        ...['-mon', 'chardev=qmp,mode=control', ...extra],
      ],
      runtime_dir,
      log_path,
      timeout_ms: 60_000,
    };
  }

  afterEach(async () => {
    for (const identity of alive.splice(0)) {
      killProcess(identity, 'SIGKILL');
      assert.ok(await waitForExit(identity, 60_000));
    }
  });
  after(() => rmSync(root, { recursive: true, force: true }));

  test('returns a process with its own session that replies to QMP, and finds it by its arguments', async () => {
    const { identity, qmp } = await launchVm(options());
    alive.push(identity);
    assert.equal((await qmp.execute('query-name')).name, instance_id);
    const session = readFileSync(`/proc/${identity.pid}/stat`, 'utf8').split(') ')[1]?.split(' ')[3];
    assert.equal(Number(session), identity.pid);
    assert.deepEqual(findOrphans(root), [{ identity, instance_id, vm_id: null, runtime_dir }]);
    assert.deepEqual(findOrphans(`${root}-other`), []);
    qmp.close();
  });

  test('fails with QEMU’s own words, and leaves no process', async () => {
    await assert.rejects(launchVm(options('-kernel', '/nonexistent', '-bogus')), (error: unknown) => {
      assert.ok(error instanceof QemuLaunchError);
      assert.match(error.message, /ended with status 1: .*-bogus: invalid option/);
      return true;
    });
    assert.deepEqual(findOrphans(root), []);
    const missing = launchVm({ ...options(), qemu_binary: '/nonexistent/qemu' });
    await assert.rejects(missing, /ENOENT/);
  });

  test('reports a taken forward port, even when the monitor already listens', async () => {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as { port: number };
    try {
      const taken = launchVm(options('-netdev', `user,id=net0,hostfwd=tcp:127.0.0.1:${port}-:22`));
      await assert.rejects(taken, /Could not set up host forwarding rule/);
    } finally {
      server.close();
    }
  });

  test("takes its sockets folder from QEMU's user, so a compromised QEMU can replace no socket", {
    skip: AS_ROOT,
  }, async () => {
    prepareRuntimeDir(runtime_dir, USER.uid, USER.gid);
    chmodSync(root, 0o711);
    const { identity, qmp } = await launchVm({ ...options(), run_as: USER });
    alive.push(identity);
    assert.equal(userOfProcess(identity), USER.uid);
    const socket = join(runtime_dir, 'qmp.sock');
    const modes = [runtime_dir, socket]
      .map((path) => statSync(path))
      .map(({ uid, mode }) => [uid, mode & 0o777]);
    assert.deepEqual(modes, [
      [0, 0o711],
      [USER.uid, 0o600],
    ]);
    const tried = ['ln -sfT /etc/passwd "$0"', 'rm -f "$0"', 'ln -s /etc/passwd "$0.new"'].map(
      (command) => spawnSync('/bin/sh', ['-c', command, socket], { ...USER, cwd: '/' }).status,
    );
    assert.ok(!tried.includes(0), tried.join(' '));
    qmp.close();
  });

  test('reports the end at once, and distinguishes a lost monitor from a lost process', async () => {
    const { identity, qmp } = await launchVm(options());
    alive.push(identity);
    const disconnected = Promise.withResolvers<VmEnd>();
    onVmExit(identity, qmp, disconnected.resolve);
    qmp.close();
    assert.equal(await disconnected.promise, 'disconnected');
    assert.ok(isProcessAlive(identity));

    // In the same folder, beside the first: the monitor must be the new process's.
    const other = await launchVm(options());
    alive.push(other.identity);
    const exited = Promise.withResolvers<VmEnd>();
    onVmExit(other.identity, other.qmp, exited.resolve);
    assert.ok(killProcess(other.identity, 'SIGKILL'));
    assert.equal(await exited.promise, 'exited');
    assert.equal(killProcess(other.identity, 'SIGKILL'), false);
  });
});

test('keeps of an earlier agent’s sockets only those of its user', {
  skip: AS_ROOT,
}, (t) => {
  const root = mkdtempSync(join(tmpdir(), 'brun-'));
  t.after(() => rmSync(root, { recursive: true }));
  chmodSync(root, 0o711);
  const folder = join(root, 'run');
  prepareRuntimeDir(folder, USER.uid, USER.gid);
  const at = (name: string) => join(folder, name);
  const [own, planted, made] = [at('own'), at('planted'), at('made')];
  const script =
    'use Socket; socket my $s, AF_UNIX, SOCK_STREAM, 0; bind $s, pack_sockaddr_un($ARGV[0]) or die $!; symlink $ARGV[2], $ARGV[1]; mkdir $ARGV[3]';
  const victim = join(root, 'victim');
  writeFileSync(victim, '', { mode: 0o600 });
  const ran = spawnSync('perl', ['-e', script, own, planted, victim, made], { ...USER, encoding: 'utf8' });
  assert.equal(ran.status, 0, ran.stderr);
  takeRuntimeDir(folder, USER.uid, [own, planted, made, at('absent')]);
  assert.deepEqual(readdirSync(folder).sort(), ['made', 'own']);
  assert.deepEqual([statSync(own).mode & 0o777, statSync(victim).mode & 0o777], [0o600, 0o600]);
  // Of another user: it is not this VM's, whatever it is.
  takeRuntimeDir(folder, USER.uid + 1, [own]);
  assert.deepEqual(readdirSync(folder), ['made']);
});

test('a pid with another start time or of another boot counts as ended and is never signalled', async () => {
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
  try {
    const identity = identityOfProcess(child.pid ?? 0);
    assert.ok(identity && isProcessAlive(identity));
    const others = [
      { ...identity, start_time: identity.start_time - 1 },
      { ...identity, boot_id: 'another' },
    ];
    for (const other of others) {
      assert.equal(isProcessAlive(other), false);
      assert.equal(killProcess(other, 'SIGKILL'), false);
    }
    assert.equal(await waitForExit(identity, 5), false);
    assert.ok(isProcessAlive(identity));
  } finally {
    child.kill('SIGKILL');
  }
});

test('a log is cut to the last half of its bound while a writer appends', () => {
  const folder = mkdtempSync(join(tmpdir(), 'blog-'));
  const path = join(folder, 'log');
  try {
    writeFileSync(path, 'x'.repeat(900));
    boundQemuLog(path, 1_000);
    assert.equal(statSync(path).size, 900);
    appendFileSync(path, 'y'.repeat(300));
    boundQemuLog(path, 1_000);
    assert.equal(readFileSync(path, 'utf8'), 'x'.repeat(200) + 'y'.repeat(300));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
