/** The egress rules in the real kernel, for processes under a VM's user. vm-boot.test.ts proves it from a guest. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { after, describe, test } from 'node:test';
import { applyHostRules, removeHostRules } from '../../src/host/network/packet-rules.ts';
import { VM_UID_BASE, VM_UID_COUNT } from '../../src/host/qemu/confinement.ts';

// Beyond the VMs' range: the rules of an installation that runs on this machine must not answer for ours.
const uid = VM_UID_BASE + VM_UID_COUNT + (process.pid % 90_000);
const data_folder_id = `egress${process.pid}`;
const skip =
  process.getuid?.() !== 0
    ? 'firewall rules take root'
    : spawnSync('nft', ['list', 'tables']).status !== 0
      ? 'nft does not work here'
      : false;

/** Whether a process of the VM's user can read a line from that port. */
async function reaches(port: number): Promise<boolean> {
  const child = spawn('bash', ['-c', `exec 3<>/dev/tcp/127.0.0.1/${port} && head -n 1 <&3`], {
    uid,
    gid: uid,
    cwd: '/',
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const [status] = await once(child, 'close');
  return status === 0;
}

describe('the egress rules', { skip, timeout: 300_000 }, () => {
  after(() => removeHostRules(data_folder_id));

  test('close the host’s loopback only to VMs’ users, and can be applied twice', async () => {
    const server = createServer((socket) => socket.end('hello\n')).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    try {
      assert.ok(await reaches(port), 'open without rules: else this proves nothing');
      const options = { data_folder_id, first_uid: uid, last_uid: uid };
      assert.deepEqual(await applyHostRules(options), { closed: true });
      assert.deepEqual(await applyHostRules(options), { closed: true });
      assert.equal(await reaches(port), false);
      const [line] = await once(connect(port, '127.0.0.1'), 'data');
      assert.equal(String(line), 'hello\n');
    } finally {
      server.close();
    }
    assert.equal(await removeHostRules(data_folder_id), null);
  });

  test('return a reason when they cannot be applied', async () => {
    const absent = await applyHostRules({ data_folder_id, nft_binary: '/nonexistent/nft' });
    assert.ok(!absent.closed && /not installed/.test(absent.reason));
    const failing = await applyHostRules({ data_folder_id, nft_binary: 'false' });
    assert.ok(!failing.closed && /status 1/.test(failing.reason));
  });
});
