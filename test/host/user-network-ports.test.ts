/** The ways into the TCP ports of one real guest. Needs the guest image (BERTH_TEST_IMAGE_DIR) and root. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { createOverlay } from '../../src/host/disk/overlay-files.ts';
import { GuestAgent } from '../../src/host/guest/guest-agent.ts';
import { guestExec } from '../../src/host/guest/guest-commands.ts';
import { prepareRuntimeDir, VM_UID_BASE, VM_UID_COUNT } from '../../src/host/qemu/confinement.ts';
import { qemuArguments, type VmSpec, vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { killProcess, launchVm, type ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import type { QmpClient } from '../../src/host/qemu/qmp-client.ts';
import { DrainedError, NotListeningError, UserNetworkPorts } from '../../src/host/vm/guest-ports.ts';
import type { PortForward } from '../../src/host/vm/record.ts';
import { newId } from '../../src/shared/ids.ts';
import { ownPort } from '../support/own-ports.ts';
import { readAll } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

const image_dir = process.env['BERTH_TEST_IMAGE_DIR'];
const skip = !image_dir
  ? 'BERTH_TEST_IMAGE_DIR names no guest image'
  : process.getuid?.() !== 0
    ? 'running a VM as another user takes root'
    : false;

/** Answers each line by itself, after the number of milliseconds that the line says. */
const SERVER = `use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die;
  while (my $c = $s->accept) { next if fork; while (my $l = <$c>) { select(undef, undef, undef, $l / 1000); print $c $l; $c->flush } exit }`;

describe("a guest's ports", { skip, timeout: 200_000 }, () => {
  const root = mkdtempSync(join(tmpdir(), 'bgp-'));
  const runtime_dir = join(root, 'run', 'vm');
  const uid = VM_UID_BASE + VM_UID_COUNT + 100_000 + (process.pid % 90_000);
  const user = { uid, gid: uid };
  const never = new AbortController().signal;
  let identity: ProcessIdentity | undefined;
  let qmp: QmpClient;
  let agent: GuestAgent;
  const record: { port_forwards?: readonly PortForward[] } = {};
  /** As an agent has it, and another that has adopted the VM. */
  const portsOf = () =>
    new UserNetworkPorts({ qmp, record, update: async (change) => void Object.assign(record, change) });
  let ports: UserNetworkPorts;

  before(async () => {
    mkdirSync(join(root, 'run'), { mode: 0o711 });
    chmodSync(root, 0o711);
    prepareRuntimeDir(runtime_dir, user.uid, user.gid);
    const instance_id = newId('inst');
    const { overlay } = await createOverlay({
      ...{ folder: root, instance_id, size_bytes: 2 * 1024 ** 3, owner: user, qemu_img_binary: 'qemu-img' },
    });
    const spec: VmSpec = {
      ...{ instance_id, vm_id: newId('vm'), cpus: 1, memory_mib: 256, accel: 'tcg', hostname: 'ports' },
      kernel_path: join(image_dir ?? '', 'vmlinuz'),
      initrd_path: join(image_dir ?? '', 'initrd.img'),
      base_path: join(image_dir ?? '', 'rootfs.img'),
      ...{ overlay_path: overlay, runtime_dir },
      network: { kind: 'user', ssh_forward_port: await ownPort(), restricted: false },
    };
    const launched = await launchVm({
      ...{ qemu_binary: 'qemu-system-x86_64', arguments: qemuArguments(spec), run_as: user, runtime_dir },
      log_path: join(root, 'qemu.log'),
    });
    ({ identity, qmp } = launched);
    agent = new GuestAgent(vmSockets(runtime_dir).agent);
    ports = portsOf();
    await qmp.execute('cont');
    await agent.waitUntilUp(100_000);
    await guestExec(agent, {
      path: 'sh',
      args: ['-c', `perl -e '${SERVER}' > /dev/null 2>&1 < /dev/null &`],
    });
  });

  after(() => {
    agent?.close();
    qmp?.close();
    if (identity) killProcess(identity, 'SIGKILL');
    rmSync(root, { recursive: true, force: true });
  });

  const ask = async (address: string, line: string) => {
    const [host, port] = address.split(':');
    const socket = connect(Number(port), host);
    socket.write(`${line}\n`);
    const [data] = (await once(socket, 'data')) as [Buffer];
    socket.destroy();
    return String(data).trim();
  };

  test('a port where nothing listens is refused, and one that is listened at gets an address of the loopback', async () => {
    await assert.rejects(ports.open(8081), NotListeningError);
    const address = await until('it listens', () => ports.open(8080).catch(() => undefined));
    assert.match(address, /^127\.\d+\.\d+\.\d+:\d+$/);
    assert.equal(await ask(address, '1'), '1');
    assert.equal(await ports.open(8080), address);
  });

  test('an agent that adopts the VM knows the way, and opens a lost one again', async () => {
    const [known] = (record.port_forwards ?? []).filter(({ port }) => port === 8080);
    assert.equal(await portsOf().open(8080), known?.address);
    await qmp.execute('human-monitor-command', {
      'command-line': `hostfwd_remove net0 tcp:${known?.address}`,
    });
    const again = await portsOf().open(8080);
    assert.notEqual(again, known?.address);
    assert.equal(await ask(again, '2'), '2');
  });

  test('a connection is given once the guest has accepted it', async () => {
    const socket = await ports.connect(8080);
    socket.end('3\n');
    assert.equal(String(await readAll(socket)), '3\n');
    await assert.rejects(ports.connect(8081), NotListeningError);
  });

  test('a drain lets a request under way finish, and lets no other in', async () => {
    const address = await ports.open(8080);
    const answer = ask(address, '500');
    await until('the request is under way', async () => {
      const text = await qmp.execute('human-monitor-command', { 'command-line': 'info usernet' });
      return text.includes('ESTABLISHED');
    });
    const drained = ports.drain(never);
    await assert.rejects(ports.open(8080), DrainedError);
    assert.equal(await answer, '500');
    await drained;
    await assert.rejects(ask(address, '1'), { code: 'ECONNREFUSED' });
    assert.deepEqual(record.port_forwards, []);
    await ports.resume();
    assert.equal(await ask(await ports.open(8080), '1'), '1');
  });

  test('a drain waits for an endless connection for two seconds', async () => {
    const socket = await ports.connect(8080);
    const began_ms = performance.now();
    await ports.drain(never);
    assert.ok(performance.now() - began_ms < 10_000);
    socket.destroy();
  });
});
