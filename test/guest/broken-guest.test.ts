/**
 * Guests whose owner broke sshd or the network: the VM runs and says what is wrong, commands work, and nobody else's starts
 * become slower.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { VmBody } from '../support/rest-client.ts';

interface Ended {
  readonly exit_code: number;
  readonly stdout: string;
}

describe('a broken guest', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  const templates = () => readdirSync(berth.paths.templates).filter((name) => /^[0-9a-f]{32}$/.test(name));
  const fastStarts = ({ id }: GuestInstance) =>
    berth.output.split('\n').filter((line) => line.includes('starts from a template') && line.includes(id))
      .length;
  const exec = (script: string) =>
    berth.client.expect<Ended>(200, 'POST', `${guest.path}/vm/exec`, { command: ['sh', '-c', script] });
  const because = (code: string) => (vm: VmBody) => vm.state === 'running' && vm.reason?.code === code;

  before(async () => {
    berth = await Installation.start({ own_templates: true });
    guest = await GuestInstance.running(berth, 'broken');
    await berth.printed(/a template was made/, 0, 300_000);
  });
  after(() => berth?.dispose());

  test('accepts keys although everybody may write to its root folder', async () => {
    await guest.sh('chmod 777 / /root /run');
    assert.equal(await guest.shAgain('echo in'), 'in');
    await guest.sh('chmod 755 / /run; chmod 700 /root');
  });

  test('whose sshd cannot start runs, says why, executes commands, and takes no template from others', async () => {
    await guest.sh('echo Nonsense yes >> /etc/ssh/sshd_config');
    for (const boot of [1, 2]) {
      await guest.stop();
      await guest.start();
      const { reason } = await guest.becomes('without SSH', because('ssh_unavailable'));
      assert.match(
        reason?.message ?? '',
        /sshd in the guest cannot start: .*Bad configuration option: Nonsense/,
      );
      assert.match(reason?.message ?? '', /berth exec.*berth console/);
      assert.equal(fastStarts(guest), boot);
    }
    const refused = await berth.client.request('GET', `${guest.path}/ssh`);
    assert.equal(refused.status, 409);
    assert.match(JSON.stringify(refused.body), /"code":"CONFLICT".*ssh_unavailable/);
    assert.equal((await exec('echo works')).stdout, 'works\n');
    assert.equal(templates().length, 1);

    await exec('sed -i /Nonsense/d /etc/ssh/sshd_config');
    await guest.becomes('repaired', because('ready'));
    assert.equal(await guest.shAgain('echo in'), 'in');
    const other = await GuestInstance.create(berth, 'other');
    await other.start();
    assert.equal(fastStarts(other), 1);
    await other.stop({ force: true });
  });

  test('whose network is down runs, says so, and executes commands', async () => {
    await guest.sh("sed -i '1i ::sysinit:/usr/lib/berth/busybox ifconfig eth0 down' /etc/inittab");
    await guest.stop();
    await guest.start();
    await guest.becomes('without a network', because('network_unavailable'), 120_000);
    assert.equal((await berth.client.request('GET', `${guest.path}/ssh`)).status, 409);
    await exec('sed -i /ifconfig/d /etc/inittab; sync');
    await guest.restart();
    await guest.becomes('repaired', because('ready'));
    assert.equal(await guest.shAgain('echo in'), 'in');
  });
});
