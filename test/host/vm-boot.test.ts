/**
 * One real guest, booted once, under another user, by the libraries of src/host: launch, agent, exec, files,
 * freeze, egress, reboot, power-off, death. Needs the guest image (BERTH_TEST_IMAGE_DIR) and root.
 */
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { createOverlay } from '../../src/host/disk/overlay-files.ts';
import { GuestAgent, GuestAgentError } from '../../src/host/guest/guest-agent.ts';
import { guestExec, readGuestFile, readGuestFileFrom } from '../../src/host/guest/guest-commands.ts';
import { memoryUse, networkUse, rootFileSystemUse } from '../../src/host/guest/guest-use.ts';
import { runUserCommand } from '../../src/host/guest/user-command.ts';
import { applyHostRules, removeHostRules } from '../../src/host/network/packet-rules.ts';
import {
  DISK_LIMITS,
  filesOfVm,
  hostCgroups,
  limitDisk,
  limitProcess,
  openJail,
  prepareRuntimeDir,
  removeLimits,
  VM_UID_BASE,
  VM_UID_COUNT,
  vmLimits,
} from '../../src/host/qemu/confinement.ts';
import { qemuArguments, type VmSpec, vmSockets } from '../../src/host/qemu/qemu-command.ts';
import {
  findOrphans,
  killProcess,
  launchVm,
  onVmExit,
  type ProcessIdentity,
  type VmEnd,
} from '../../src/host/qemu/qemu-process.ts';
import type { QmpClient } from '../../src/host/qemu/qmp-client.ts';
import { newId } from '../../src/shared/ids.ts';
import { ownPort } from '../support/own-ports.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const image_dir = process.env['BERTH_TEST_IMAGE_DIR'];
const skip = !image_dir
  ? 'BERTH_TEST_IMAGE_DIR names no guest image'
  : process.getuid?.() !== 0
    ? 'running a VM as another user takes root'
    : false;
const GUEST_TIMEOUT_MS = 60_000;

describe('a VM', { skip, timeout: 300_000 }, () => {
  const root = mkdtempSync(join(tmpdir(), 'bvm-'));
  const runtime_dir = join(root, 'run', 'vm');
  const instance_id = newId('inst');
  const vm_id = newId('vm');
  // Beyond the VMs' range: the egress rules of an installation that runs on this machine must not answer for ours.
  const uid = VM_UID_BASE + VM_UID_COUNT + 100_000 + (process.pid % 90_000);
  const user = { uid, gid: uid };
  const data_folder_id = `test${process.pid}`;
  const mounts = hostCgroups();
  let identity: ProcessIdentity | undefined;
  let qmp: QmpClient;
  let agent: GuestAgent;
  let started_at: number;

  before(async () => {
    mkdirSync(join(root, 'run'), { mode: 0o711 });
    chmodSync(root, 0o711);
    prepareRuntimeDir(runtime_dir, user.uid, user.gid);
    const kernel_path = join(image_dir ?? '', 'vmlinuz');
    const initrd_path = join(image_dir ?? '', 'initrd.img');
    const base_path = join(image_dir ?? '', 'rootfs.img');
    const { overlay } = await createOverlay({
      folder: root,
      instance_id,
      size_bytes: 2 * 1024 ** 3,
      owner: user,
      qemu_img_binary: 'qemu-img',
    });
    const spec: VmSpec = {
      instance_id,
      vm_id,
      cpus: 1,
      memory_mib: 256,
      accel: 'tcg',
      kernel_path,
      initrd_path,
      hostname: 'boot-test',
      overlay_path: overlay,
      base_path,
      runtime_dir,
      network: { kind: 'user', ssh_forward_port: await ownPort(), restricted: false },
    };
    const { jail, problem } = await openJail(join(root, 'etc'));
    assert.ok(jail, problem ?? '');
    started_at = performance.now();
    const launched = await launchVm({
      qemu_binary: 'qemu-system-x86_64',
      arguments: qemuArguments(spec),
      run_as: user,
      jail: { jail, files: filesOfVm(spec) },
      runtime_dir,
      log_path: join(root, 'qemu.log'),
    });
    identity = launched.identity;
    qmp = launched.qmp;
    agent = new GuestAgent(vmSockets(runtime_dir).agent);
  });

  after(async () => {
    agent?.close();
    qmp?.close();
    if (identity) killProcess(identity, 'SIGKILL');
    await removeHostRules(data_folder_id);
    removeLimits(mounts, instance_id);
    rmSync(root, { recursive: true, force: true });
  });

  test('starts paused, as its own user, and is found again by its arguments alone', async () => {
    assert.equal((await qmp.execute('query-status')).status, 'prelaunch');
    assert.equal(statSync(`/proc/${identity?.pid}`).uid, user.uid);
    assert.deepEqual(findOrphans(join(root, 'run')), [{ identity, instance_id, vm_id, runtime_dir }]);
    assert.deepEqual(findOrphans(join(root, 'elsewhere')), []);
  });

  test('has limits where the host has control groups', (context) => {
    const result = limitProcess(
      mounts,
      instance_id,
      identity?.pid ?? 0,
      vmLimits({ cpus: 1, memory_mib: 256, accel: 'tcg' }),
    );
    if (!result.limited) return context.skip(result.reason);
    assert.match(
      readFileSync(`/proc/${identity?.pid}/cgroup`, 'utf8'),
      new RegExp(`/berth/${instance_id}$`, 'm'),
    );
    // Shares of I/O, where there is a controller of them.
    if (mounts?.version === 1 && mounts.roots.blkio)
      assert.match(
        readFileSync(`/proc/${identity?.pid}/cgroup`, 'utf8'),
        new RegExp(`:blkio:/berth/${instance_id}$`, 'm'),
      );
  });

  test('has a disk with a size limit', async () => {
    await limitDisk(qmp);
    const [disk] = await qmp.execute('query-block');
    const { bps, iops, bps_max, iops_max } = disk?.inserted ?? {};
    assert.deepEqual({ bps, iops, bps_max, iops_max }, DISK_LIMITS);
  });

  test('comes up, and its agent answers after cont', async (context) => {
    await qmp.execute('block-dirty-bitmap-add', { node: 'overlay', name: 'flush', granularity: 65_536 });
    await qmp.execute('cont');
    await agent.waitUntilUp(GUEST_TIMEOUT_MS);
    context.diagnostic(`agent up ${Math.round(performance.now() - started_at)} ms after the launch`);
  });

  test('runs a command with input, output, environment and exit code', async () => {
    const result = await guestExec(agent, {
      path: '/bin/sh',
      args: ['-c', 'cat; echo "$WORD" >&2; exit 3'],
      env: ['WORD=harbour', 'PATH=/usr/bin:/bin'],
      input: 'in',
    });
    assert.deepEqual(
      { ...result, stdout: result.stdout.toString(), stderr: result.stderr.toString() },
      { exit_code: 3, signal: null, stdout: 'in', stderr: 'harbour\n' },
    );
    await assert.rejects(guestExec(agent, { path: '/nonexistent' }), GuestAgentError);
  });

  test('truncates long output and reports it, and a command over its time limit is an error', async () => {
    const args = ['-c', 'head -c 300000 /dev/zero; head -c 150000 /dev/zero >&2; echo end >&2; exit 5'];
    const long = await runUserCommand(agent, {
      ...{ path: '/bin/sh', args, input: '', timeout_ms: 60_000, max_output_bytes: 200_000 },
      signal: new AbortController().signal,
    });
    assert.deepEqual([long.exit_code, long.stdout.length, long.truncated], [5, 200_000, true]);
    assert.equal(long.stderr.subarray(-5).toString(), '\0end\n');
    assert.equal(long.stderr.length, 150_004);
    await assert.rejects(guestExec(agent, { path: 'sleep', args: ['600'], timeout_ms: 300 }), {
      name: 'GuestAgentTimeoutError',
    });
    const left = await guestExec(agent, {
      path: '/bin/sh',
      args: ['-c', 'cat /proc/[0-9]*/cmdline | tr "\\0" " "'],
    });
    assert.ok(!left.stdout.toString().includes('sleep 600'), 'the command was killed');
  });

  test('returns its files completely or not at all, also from an offset', async () => {
    const path = '/run/berth/long';
    const text = 'abcdefgh'.repeat(250_000);
    await guestExec(agent, { path: '/bin/sh', args: ['-c', `cat > ${path}`], input: text });
    assert.equal((await readGuestFile(agent, path, 4_000_000)).toString(), text);
    await assert.rejects(readGuestFile(agent, path, 10), GuestAgentError);
    await assert.rejects(readGuestFile(agent, '/run/berth/none', 10), GuestAgentError);
    const from = async (offset: number | 'end') => {
      const found = await readGuestFileFrom(agent, path, offset, { max_bytes: 12 });
      return [found.offset, found.data.toString()];
    };
    assert.deepEqual(await from(1_999_993), [1_999_993, 'bcdefgh']);
    assert.deepEqual(await from(5), [5, 'fghabcdefgha']);
    assert.deepEqual(await from('end'), [2_000_000, '']);
    assert.deepEqual(await from(3_000_000), [0, 'abcdefghabcd']);
  });

  test('freezes, refuses files meanwhile, and thaws', async (context) => {
    const begin = performance.now();
    assert.ok((await agent.fsfreeze(60_000)) >= 1);
    context.diagnostic(`frozen after ${Math.round(performance.now() - begin)} ms`);
    assert.equal(agent.maybe_frozen, true);
    assert.equal(await agent.fsfreezeStatus(), 'frozen');
    await assert.rejects(guestExec(agent, { path: '/bin/true' }), GuestAgentError);
    assert.ok((await agent.thaw()) >= 1);
    assert.equal(agent.maybe_frozen, false);
    assert.equal(await agent.fsfreezeStatus(), 'thawed');
  });

  test('has its clock set and reports its network and memory', async () => {
    await agent.setTime(1_900_000_000_000_000_000n);
    const { stdout } = await guestExec(agent, { path: 'date', args: ['+%s'] });
    assert.ok(Math.abs(Number(stdout) - 1_900_000_000) < 30);
    await agent.setTime(BigInt(Date.now()) * 1_000_000n);
    const { received_bytes, sent_bytes } = await networkUse(agent, { timeout_ms: 60_000 });
    assert.ok(received_bytes !== null && sent_bytes !== null);
    const { total_bytes, used_bytes } = await memoryUse(agent, { timeout_ms: 60_000 });
    assert.ok(used_bytes !== null && total_bytes !== null && used_bytes < total_bytes);
  });

  test('reports how full its root file system is', async () => {
    const use = await rootFileSystemUse(agent, { timeout_ms: 60_000 });
    assert.ok(use !== null);
    const { stdout } = await guestExec(agent, { path: 'df', args: ['-B1', '--output=used,size', '/'] });
    const [used = 0] = stdout.toString().trim().split('\n').at(-1)?.trim().split(/\s+/).map(Number) ?? [];
    assert.ok(Math.abs(use.used_bytes - used) < 4 * 2 ** 20, `${use.used_bytes} and ${used}`);
    assert.ok(use.total_bytes > use.used_bytes);
  });

  test('answers a new client although an earlier one left half a command', async () => {
    const half = connect(vmSockets(runtime_dir).agent);
    agent.close();
    await new Promise((resolve) => half.write('{"execute":"guest-exec","arguments":{"pa', resolve));
    half.destroy();
    agent = new GuestAgent(vmSockets(runtime_dir).agent);
    await agent.ping();
    assert.equal((await guestExec(agent, { path: '/bin/true' })).exit_code, 0);
  });

  test('reaches a port of the host by slirp’s alias only until the egress rules are there', async (context) => {
    const server = createServer((socket) => socket.end('host\n')).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const { port } = server.address() as AddressInfo;
    const script = `exec 3<>/dev/tcp/10.0.2.2/${port} && cat <&3`;
    const reach = () => guestExec(agent, { path: 'bash', args: ['-c', script], timeout_ms: 60_000 });
    try {
      assert.equal(
        (await reach()).stdout.toString(),
        'host\n',
        'open without rules: else this proves nothing',
      );
      const applied = await applyHostRules({ data_folder_id, first_uid: user.uid, last_uid: user.uid });
      if (!applied.closed) return context.skip(applied.reason);
      const closed = await reach();
      assert.notEqual(closed.exit_code, 0);
      assert.equal(closed.stdout.toString(), '');
    } finally {
      server.close();
    }
  });

  // test/guest/five-steps.test.ts restarts a guest, and nothing is lost by it.
  test(
    'a reboot sends RESET over QMP and keeps the process and the dirty bitmap, and the agent returns',
    THOROUGH,
    async (context) => {
      const reset = qmp.waitForEvent((event) => event.event === 'RESET', { timeout_ms: GUEST_TIMEOUT_MS });
      const port_open = qmp.waitForEvent((event) => event.event === 'VSERPORT_CHANGE' && event.data.open, {
        timeout_ms: GUEST_TIMEOUT_MS,
      });
      const begin = performance.now();
      await agent.shutdown('reboot');
      const event = await reset;
      assert.ok(event.event === 'RESET' && event.data.guest);
      context.diagnostic(`RESET ${Math.round(performance.now() - begin)} ms after the request`);
      await port_open;
      context.diagnostic(`port open ${Math.round(performance.now() - begin)} ms after the request`);
      await agent.waitUntilUp(GUEST_TIMEOUT_MS);
      context.diagnostic(`agent again ${Math.round(performance.now() - begin)} ms after the request`);
      const nodes = await qmp.execute('query-named-block-nodes', { flat: true });
      const bitmap = nodes.find((node) => node['node-name'] === 'overlay')?.['dirty-bitmaps']?.[0];
      assert.ok(bitmap?.name === 'flush' && bitmap.count > 0);
    },
  );

  test('a power-off sends SHUTDOWN over QMP, and QEMU stays, paused, with its bitmap', async (context) => {
    const shutdown = qmp.waitForEvent((event) => event.event === 'SHUTDOWN', {
      timeout_ms: GUEST_TIMEOUT_MS,
    });
    const stopped = qmp.waitForEvent((event) => event.event === 'STOP', { timeout_ms: GUEST_TIMEOUT_MS });
    const begin = performance.now();
    await agent.shutdown('powerdown');
    const event = await shutdown;
    assert.ok(event.event === 'SHUTDOWN' && event.data.reason === 'guest-shutdown');
    await stopped;
    context.diagnostic(`SHUTDOWN ${Math.round(performance.now() - begin)} ms after the request`);
    assert.equal((await qmp.execute('query-status')).status, 'shutdown');
  });

  test('a kill is noticed through its QMP socket', async (context) => {
    assert.ok(identity);
    const ended = Promise.withResolvers<VmEnd>();
    onVmExit(identity, qmp, ended.resolve);
    const begin = performance.now();
    killProcess(identity, 'SIGKILL');
    assert.equal(await ended.promise, 'exited');
    context.diagnostic(`noticed after ${Math.round(performance.now() - begin)} ms`);
    // Its bubblewrap ends a moment after it.
    await until('nothing of it runs', () => findOrphans(join(root, 'run')).length === 0);
    // The kernel removes the last thread from the group a moment after the process has ended.
    await until('the control group is removed', () => removeLimits(mounts, instance_id) === null);
  });
});
