/** What a VM's QEMU, and the tools that read its overlay, can see and do on this host. Real namespaces: takes root. */
import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  closeSync,
  constants,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, test } from 'node:test';
import { createOverlay, growOverlay, inspectOverlay, qemuImg } from '../../src/host/disk/overlay-files.ts';
import {
  CLEAN_ENV,
  inJail,
  type Jail,
  openJail,
  prepareRuntimeDir,
  refreshResolvers,
  vmUser,
} from '../../src/host/qemu/confinement.ts';
import {
  allPids,
  commandLineOf,
  findOrphans,
  identityOfProcess,
  isProcessAlive,
  isStopped,
  killProcess,
  launchVm,
  MEMORY_FD,
  type ProcessIdentity,
  QemuLaunchError,
  waitForExit,
} from '../../src/host/qemu/qemu-process.ts';
import { newId } from '../../src/shared/ids.ts';

const skip = process.getuid?.() === 0 ? false : 'not root';
const USER = vmUser(23);
const MIB = 2 ** 20;
const EXIT_MS = 60_000;

describe('a jailed QEMU', { skip, timeout: 300_000 }, () => {
  // Not in a folder that the jail has of its own.
  const root = mkdtempSync(join(tmpdir(), 'bjail-'));
  const runtime_dir = join(root, 'vm', 'run');
  const secret = join(root, 'secret');
  const etc_dir = join(root, 'etc');
  const base = join(root, 'base.img');
  const log_path = join(root, 'qemu.log');
  const instance_id = newId('inst');
  const alive: ProcessIdentity[] = [];
  let jail: Jail;
  let overlay: string;

  before(async () => {
    chmodSync(root, 0o711);
    mkdirSync(join(root, 'vm'), { mode: 0o711 });
    // Readable to everybody: what is not seen is not refused by its mode.
    for (const path of [secret, base]) writeFileSync(path, 'content', { mode: 0o644 });
    const opened = await openJail(etc_dir);
    assert.equal(opened.problem, null);
    assert.ok(opened.jail);
    jail = opened.jail;
    ({ overlay } = await createOverlay({
      ...{ folder: root, instance_id, size_bytes: MIB, qemu_img_binary: 'qemu-img', owner: USER },
    }));
  });
  afterEach(async () => {
    for (const identity of alive.splice(0)) {
      killProcess(identity, 'SIGKILL');
      assert.ok(await waitForExit(identity, EXIT_MS));
    }
  });
  after(() => rmSync(root, { recursive: true, force: true }));

  async function launch(words: readonly string[] = [], memory?: FileHandle) {
    prepareRuntimeDir(runtime_dir, USER.uid, USER.gid);
    const machine = ['-M', 'none', '-nodefaults', '-no-user-config', '-display', 'none', '-S'];
    const launched = await launchVm({
      qemu_binary: 'qemu-system-x86_64',
      arguments: [
        ...['-name', `guest=${instance_id}`, ...machine],
        ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
        ...['-chardev', `socket,id=qmp,path=${runtime_dir}/qmp.sock,server=on,wait=off`],
        ...['-mon', 'chardev=qmp,mode=control', ...words],
      ],
      ...{ runtime_dir, log_path, run_as: USER, timeout_ms: 60_000 },
      jail: { jail, files: { reads: [base], writes: [overlay, runtime_dir] } },
      ...(memory ? { memory_fd: memory.fd } : {}),
    });
    alive.push(launched.identity);
    return launched;
  }

  /** As whoever has broken out of QEMU could do: its user, in its namespaces. */
  function inside({ pid }: ProcessIdentity, script: string) {
    const ids = ['--reuid', String(USER.uid), '--regid', String(USER.gid), '--clear-groups'];
    const words = ['--target', String(pid), '--mount', '--pid', '--ipc', '--uts', '--', 'setpriv', ...ids];
    return spawnSync('nsenter', [...words, '/bin/sh', '-c', script], { encoding: 'utf8', cwd: '/' });
  }

  const ofThisInstance = () =>
    allPids().filter((pid) => commandLineOf(pid).includes(`guest=${instance_id}`) && identityOfProcess(pid));

  test('sees the system’s programs, its own files and the resolvers, and nothing else of this host', async () => {
    const { identity, qmp } = await launch();
    const view = `/proc/${identity.pid}/root`;
    const system = ['bin', 'lib', 'lib32', 'lib64', 'libx32', 'sbin', 'usr'];
    const seen = readdirSync(view).filter((name) => !system.includes(name));
    assert.deepEqual(seen.sort(), ['dev', 'etc', root.split('/')[1]].sort());
    assert.deepEqual(readdirSync(join(view, 'dev')).sort(), ['null', 'urandom']);
    assert.deepEqual(readdirSync(join(view, 'etc')), ['resolv.conf']);
    assert.deepEqual(
      readdirSync(join(view, root)).sort(),
      ['base.img', overlay.slice(root.length + 1), 'vm'].sort(),
    );
    assert.deepEqual(readdirSync(join(view, root, 'vm')), ['run']);
    for (const path of [secret, '/etc/shadow', '/etc/passwd', '/proc', '/sys', '/home', '/root', '/var']) {
      assert.equal(inside(identity, `test -e ${path}`).status, 1, path);
    }
    qmp.close();
  });

  test('writes its overlay and its folder alone, and signals nobody', async () => {
    const { identity, qmp } = await launch();
    assert.equal(inside(identity, `true >> ${overlay}`).status, 0);
    for (const path of [base, '/etc/resolv.conf', '/new', `${root}/new`, '/usr/new'])
      assert.notEqual(inside(identity, `true >> ${path}`).status, 0, path);
    // Those of its own user, as of a template's and an image check's.
    const sibling = spawn('sleep', ['60'], { ...USER, cwd: '/', stdio: 'ignore' });
    try {
      const tried = spawnSync('/bin/sh', ['-c', `kill -0 ${sibling.pid}`], { ...USER, cwd: '/' });
      assert.equal(tried.status, 0, 'from outside it can be signalled');
      assert.notEqual(inside(identity, `kill -0 ${sibling.pid}`).status, 0);
    } finally {
      sibling.kill('SIGKILL');
    }
    qmp.close();
  });

  test('has its own namespaces except the network, and no capabilities', async () => {
    const { identity, qmp } = await launch();
    const namespace = (pid: number | 'self', name: string) => readlinkSync(`/proc/${pid}/ns/${name}`);
    for (const name of ['mnt', 'pid', 'ipc', 'uts'])
      assert.notEqual(namespace(identity.pid, name), namespace('self', name), name);
    // The egress rules are of that one.
    assert.equal(namespace(identity.pid, 'net'), namespace('self', 'net'));
    const status = readFileSync(`/proc/${identity.pid}/status`, 'utf8');
    const field = (name: string) => new RegExp(`^${name}:[ \\t]*(.*)$`, 'm').exec(status)?.[1];
    assert.equal(field('NoNewPrivs'), '1');
    assert.equal(field('Seccomp'), '2');
    assert.equal(field('Groups')?.trim(), '');
    for (const name of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb'])
      assert.equal(Number.parseInt(field(name) ?? '', 16), 0, name);
    assert.deepEqual(field('Uid')?.split('\t'), Array(4).fill(String(USER.uid)));
    assert.deepEqual(field('Gid')?.split('\t'), Array(4).fill(String(USER.gid)));
    assert.equal(field('NSpid')?.split('\t').at(-1), '1');
    qmp.close();
  });

  test('is found by its arguments, paused and ended by its host pid, and bubblewrap ends with it', async () => {
    const { identity, qmp } = await launch();
    assert.deepEqual(
      findOrphans(root).map((found) => found.identity),
      [identity],
    );
    killProcess(identity, 'SIGSTOP');
    while (!isStopped(identity)) await new Promise((resolve) => setImmediate(resolve));
    killProcess(identity, 'SIGKILL');
    assert.ok(await waitForExit(identity, EXIT_MS));
    while (ofThisInstance().length > 0) await new Promise((resolve) => setImmediate(resolve));
    qmp.close();
  });

  test('outlives bubblewrap', async () => {
    const { identity, qmp } = await launch();
    const [waiting] = ofThisInstance().filter((pid) => pid !== identity.pid);
    const bubblewrap = waiting === undefined ? null : identityOfProcess(waiting);
    assert.ok(bubblewrap);
    assert.equal(commandLineOf(bubblewrap.pid)[0], 'bwrap');
    killProcess(bubblewrap, 'SIGKILL');
    assert.ok(await waitForExit(bubblewrap, EXIT_MS));
    assert.equal((await qmp.execute('query-name')).name, instance_id);
    assert.ok(isProcessAlive(identity));
    qmp.close();
  });

  test('whose agent ended while it was launched is found and ended', async () => {
    prepareRuntimeDir(runtime_dir, USER.uid, USER.gid);
    const qemu = ['qemu-system-x86_64', '-name', `guest=${instance_id}`, '-M', 'none', '-display', 'none'];
    const monitor = ['-chardev', `socket,id=qmp,path=${runtime_dir}/qmp.sock,server=on,wait=off`];
    const files = { reads: [], writes: [runtime_dir] };
    const [file = '', ...words] = inJail({ jail, user: USER, files, info_fd: 4 }, [...qemu, ...monitor]);
    // As of an agent that was killed: nobody reads the pid any more.
    const info = join(root, 'info');
    execFileSync('mkfifo', [info]);
    const reader = openSync(info, constants.O_RDONLY | constants.O_NONBLOCK);
    const writer = openSync(info, constants.O_WRONLY);
    closeSync(reader);
    const child = spawn(file, words, {
      ...{ detached: true, cwd: '/', env: CLEAN_ENV },
      stdio: ['ignore', 'ignore', 'ignore', 'ignore', writer],
    });
    closeSync(writer);
    await once(child, 'exit');
    const [left, ...more] = findOrphans(root);
    assert.ok(left && more.length === 0, 'else this proves nothing');
    assert.equal(commandLineOf(left.identity.pid)[0], 'bwrap');
    killProcess(left.identity, 'SIGKILL');
    assert.ok(await waitForExit(left.identity, EXIT_MS));
    assert.deepEqual(findOrphans(root), []);
  });

  test('has the given memory file, and no other file of the agent', async () => {
    await using memory = await open(secret, 'r');
    const { identity, qmp } = await launch(['-incoming', 'defer'], memory);
    const files = readdirSync(`/proc/${identity.pid}/fd`).map((fd) =>
      readlinkSync(`/proc/${identity.pid}/fd/${fd}`),
    );
    assert.equal(readlinkSync(`/proc/${identity.pid}/fd/${MEMORY_FD}`), secret);
    const paths = files.filter((path) => path.startsWith('/') && !path.startsWith('/dev/'));
    assert.deepEqual([...new Set(paths)].sort(), [log_path, secret].sort());
    qmp.close();
  });

  test('that does not start reports QEMU’s reason, and leaves no process', async () => {
    await assert.rejects(launch(['-bogus']), (error: unknown) => {
      assert.ok(error instanceof QemuLaunchError);
      assert.match(error.message, /ended with status 1: .*-bogus: invalid option/);
      return true;
    });
    assert.deepEqual(findOrphans(root), []);
  });

  test('sees changed resolvers', async () => {
    const { identity, qmp } = await launch();
    const theirs = `/proc/${identity.pid}/root/etc/resolv.conf`;
    writeFileSync(join(etc_dir, 'resolv.conf'), 'nameserver 192.0.2.1\n');
    assert.equal(readFileSync(theirs, 'utf8'), 'nameserver 192.0.2.1\n');
    await refreshResolvers(jail);
    assert.equal(readFileSync(theirs, 'utf8'), readFileSync('/etc/resolv.conf', 'utf8'));
    assert.deepEqual(readdirSync(etc_dir), ['resolv.conf']);
    qmp.close();
  });

  test('works on a full disk too, with the earlier resolvers', async () => {
    const small = join(root, 'small');
    mkdirSync(small);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', small]);
    try {
      mkdirSync(join(small, 'etc'));
      writeFileSync(join(small, 'etc', 'resolv.conf'), 'nameserver 192.0.2.1\n');
      spawnSync('sh', ['-c', `cat /dev/zero > ${small}/fill`]);
      const opened = await openJail(join(small, 'etc'));
      assert.equal(opened.problem, null);
      await assert.rejects(refreshResolvers({ etc_dir: join(small, 'etc') }), { code: 'ENOSPC' });
      assert.deepEqual(readdirSync(join(small, 'etc')), ['resolv.conf']);
    } finally {
      execFileSync('umount', [small]);
    }
  });

  test('a host without namespaces gets a reason', () => {
    const module = join(import.meta.dirname, '..', '..', 'src', 'host', 'qemu', 'confinement.ts');
    const script = `const { openJail } = await import(${JSON.stringify(module)}); console.log(JSON.stringify(await openJail(${JSON.stringify(etc_dir)})));`;
    const words = ['--bounding-set=-sys_admin', '--inh-caps=-sys_admin', process.execPath];
    const said = execFileSync('setpriv', [...words, '--input-type=module', '-e', script], {
      encoding: 'utf8',
    });
    const { jail: none, problem } = JSON.parse(said);
    assert.equal(none, null);
    assert.match(problem, /^VMs run without namespaces of their own .*bwrap: .*not permitted/);
  });

  describe('an overlay that its user pointed to another file', () => {
    const other = newId('inst');
    const options = { folder: root, instance_id: other, qemu_img_binary: 'qemu-img', owner: USER };
    const grow = (more: object = {}) => growOverlay({ ...options, jail, size_bytes: 2 * MIB, ...more });
    const info = (path: string, jailed: Jail | null) =>
      qemuImg(['info', '--backing-chain', '--output=json', '-f', 'qcow2', path], {
        ...{ qemu_img_binary: 'qemu-img', user: USER, jail: jailed, files: { reads: [], writes: [path] } },
      });

    test('is refused before a program of QEMU opens it', async () => {
      const { overlay: path } = await createOverlay({ ...options, size_bytes: MIB });
      const whole = readFileSync(path);
      const given = (...rebase: string[]) => {
        writeFileSync(path, whole);
        execFileSync('qemu-img', rebase);
      };
      given('rebase', '-u', '-f', 'qcow2', '-F', 'raw', '-b', secret, path);
      assert.match((await inspectOverlay(path)).problem ?? '', /backing file/);
      await assert.rejects(grow({ qemu_img_binary: '/nonexistent' }), /names a backing file/);

      writeFileSync(path, whole);
      const with_data_file = ['-o', `data_file=${join(root, 'data')}`, path, '1M'];
      execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', ...with_data_file]);
      assert.match((await inspectOverlay(path)).problem ?? '', /data file/);
      await assert.rejects(grow({ qemu_img_binary: '/nonexistent' }), /names a data file/);
    });

    test('does not expose that file, which the tool cannot see', async () => {
      const { overlay: path } = await createOverlay({ ...options, size_bytes: MIB });
      execFileSync('qemu-img', ['rebase', '-u', '-f', 'qcow2', '-F', 'raw', '-b', secret, path]);
      assert.match((await info(path, null)).stdout, /"filename": "[^"]*secret"/);
      await assert.rejects(info(path, jail), /Could not open '[^']*secret': No such file/);
    });

    test('nor when an operator passes such a file', async () => {
      const { overlay: path } = await createOverlay({ ...options, size_bytes: MIB });
      const read = () =>
        qemuImg(['info', '--backing-chain', '-f', 'qcow2', path], {
          ...{ qemu_img_binary: 'qemu-img', user: 'operator', jail, files: { reads: [path], writes: [] } },
        });
      assert.deepEqual([statSync(path).uid, statSync(path).mode & 0o777], [USER.uid, 0o600]);
      assert.match((await read()).stdout, /virtual size: 1 MiB/);
      execFileSync('qemu-img', ['rebase', '-u', '-f', 'qcow2', '-F', 'raw', '-b', secret, path]);
      await assert.rejects(read(), /Could not open '[^']*secret': No such file/);
    });

    test('a good overlay grows as its user, and stays owned by that user', async () => {
      const { overlay: path } = await createOverlay({ ...options, size_bytes: MIB });
      await grow();
      assert.deepEqual(await inspectOverlay(path), { size_bytes: 2 * MIB, problem: null });
      assert.deepEqual([statSync(path).uid, statSync(path).mode & 0o777], [USER.uid, 0o600]);
      // Not by root's right to write it.
      chownSync(path, 0, 0);
      await assert.rejects(grow({ size_bytes: 3 * MIB }), /Permission denied/);
      await assert.rejects(grow({ size_bytes: 3 * MIB, jail: null }), /Permission denied/);
    });
  });
});
