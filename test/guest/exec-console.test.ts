/** Ways into a guest beside SSH: commands, the serial console, metrics, user_data; and a disk that grows. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, test } from 'node:test';
import { WebSocket } from 'ws';
import type { MetricHistory } from '../../client/src/berth.ts';
import type { VmMetrics } from '../../src/control-plane/vms/metric-routes.ts';
import type { ExecResult } from '../../src/protocol/host-calls.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

describe('a guest', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  const exec = (command: readonly string[], more: object = {}) =>
    berth.client.expect<ExecResult>(200, 'POST', `${guest.path}/vm/exec`, { command, ...more });
  const sh = async (script: string) => (await exec(['sh', '-c', script])).stdout.trim();

  before(async () => {
    berth = await borrowInstallation();
    const user_data =
      '#!/bin/bash\necho "first: $(id -un) $HOME $(umask) $BASH_VERSION"; echo run >> /srv/runs; exit 3\n';
    guest = await GuestInstance.running(berth, 'box', { user_data });
  });
  after(returnInstallation);

  test('runs a command as root, with its input and output', async () => {
    const script = 'id -u; pwd; cat; echo "$1" >&2; exit 7';
    const result = await exec(['sh', '-c', script, 'x', 'a "b" $c'], { stdin: 'in ä\n' });
    assert.deepEqual(result, {
      exit_code: 7,
      stdout: '0\n/\nin ä\n',
      stderr: 'a "b" $c\n',
      truncated: false,
    });
  });

  test('says which signal ended a command', async () => {
    assert.equal((await exec(['sh', '-c', 'kill -TERM $$'])).exit_code, 128 + 15);
    assert.equal((await exec(['/no/such/program'])).exit_code, 127);
  });

  test('keeps the first mebibyte of what a command prints', async () => {
    const result = await exec(['sh', '-c', 'yes 0123456 | head -c 2000000; yes e | head -c 10 >&2']);
    assert.deepEqual([result.stdout.length, result.truncated], [1024 * 1024, true]);
    assert.equal(result.stderr, 'e\n'.repeat(5));
  });

  test('kills a command and its children at its timeout, and returns its output', async () => {
    const result = await exec(['sh', '-c', 'echo begun; sleep 4321 & sleep 4321'], { timeout_seconds: 4 });
    assert.deepEqual(result, { exit_code: null, stdout: 'begun\n', stderr: '', truncated: false });
    assert.equal(await sh('pgrep -f "^sleep 432[1]" || echo none'), 'none');
  });

  test('commands keep running during the freeze of a flush', async () => {
    const long = exec([
      'sh',
      '-c',
      'for i in 1 2 3 4 5 6 7 8; do echo $i > /srv/n; sync; sleep 0.2; done; echo end',
    ]);
    for (let i = 0; i < 4; i++) {
      const [, short] = await Promise.all([guest.flushFrozen(), exec(['echo', 'meanwhile'])]);
      assert.equal(short.stdout, 'meanwhile\n');
    }
    assert.equal((await long).stdout, 'end\n');
  });

  const log = () => berth.client.expect<string>(200, 'GET', `${guest.path}/vm/console`);

  test('runs user_data once, as root, with its output in the console log, and not at a later boot', async () => {
    const said = async () => {
      const text = await log();
      return text.includes('berth: user data ended with 3') && text;
    };
    assert.match(await until('user_data has ended', said), /first: root \/root 0022 5\./);
    await guest.stop();
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await sh('cat /srv/runs'), 'run');
    assert.equal(await sh('ls /var/lib/berth'), 'user-data.begun');
  });

  test('only root in the guest can write to the folder of its keys', async () => {
    const writable =
      'find /run -xdev -writable ! -path /run/lock 2> /dev/null; touch /run/lock/mine && echo locked';
    assert.equal(await sh(`setpriv --reuid=65534 --clear-groups sh -c '${writable}'`), 'locked');
    assert.equal(await sh('findmnt -no SIZE /run/lock'), '5M');
  });

  test('a full host name in /etc/hosts stays', async () => {
    await sh("sed -i 's/^127.0.1.1.*/127.0.1.1\\tbox.example.org box/' /etc/hosts; sync");
    await guest.restart();
    assert.equal(
      (await sh('hostname -f; grep -c 127.0.1.1 /etc/hosts')).replace('\n', ' '),
      'box.example.org 1',
    );
  });

  test(
    'boots with a full disk and a new name, and files of its services stay readable to others',
    THOROUGH,
    async () => {
      await sh('cat /dev/zero > /srv/zeroes; for n in $(seq 64); do echo > /srv/$n || break; done; sync');
      await guest.stop();
      await berth.client.expect(200, 'PATCH', guest.path, { name: 'barge' });
      await guest.start();
      assert.match(await log(), /berth: \/etc\/hosts is not written: No space left on device/);
      assert.equal(await sh('hostname; ls /etc/*.new 2>/dev/null; cat /etc/hostname'), 'barge\nbox');
      await guest.learnHost();
      assert.equal(await guest.shAgain('umask'), '0022');
      await sh('rm /srv/zeroes; cd /srv && rm -f [0-9]*; sync');
      await guest.restart();
      assert.equal(await sh('cat /etc/hostname'), 'barge');
      await guest.stop();
      await berth.client.expect(200, 'PATCH', guest.path, { name: 'box' });
      await guest.start();
    },
  );

  test("metrics show the guest's work", async () => {
    const read = () => berth.client.expect<VmMetrics>(200, 'GET', `${guest.path}/vm/metrics`);
    // Also what only the guest knows: when no step of its runner has its agent.
    const known = async () => {
      const metrics = await read();
      return metrics.now.memory.used_bytes !== null && metrics;
    };
    const { now: before } = await until('the guest was asked', known);
    assert.ok(before.memory.host_bytes > 50 * 2 ** 20, 'the process has memory');
    const { used_bytes, total_bytes } = before.memory;
    assert.ok(total_bytes !== null && total_bytes > 200 * 2 ** 20 && total_bytes < 256 * 2 ** 20);
    assert.ok(used_bytes !== null && used_bytes > 0 && used_bytes < total_bytes);
    await sh(
      'head -c 3000000 /dev/urandom > /srv/written; sync; ping -c 3 -i 0.2 10.0.2.2 > /dev/null; true',
    );
    const { now: after, samples } = await until('the guest was asked again', known);
    assert.ok(after.disk.written_bytes >= before.disk.written_bytes + 3_000_000);
    assert.ok(after.cpu_seconds > before.cpu_seconds);
    assert.ok((after.network.sent_bytes ?? 0) >= (before.network.sent_bytes ?? 0) + 3 * 98);
    assert.ok(after.cpu_share === null || (after.cpu_share >= 0 && after.cpu_share <= 1));
    assert.ok(samples.every((each) => each.at < after.at));
    const history = async () => {
      const { samples } = await berth.client.expect<MetricHistory>(
        200,
        'GET',
        `/v1/instances/${guest.id}/metrics`,
      );
      return samples.find(({ memory }) => memory.used_bytes !== null);
    };
    const minute = await until('a minute of it is in the history', history);
    assert.ok((minute?.memory.host_bytes?.mean ?? 0) > 50 * 2 ** 20);
  });

  async function openConsole(): Promise<WebSocket> {
    const made = await berth.client.expect<{ ticket: string }>(
      201,
      'POST',
      `${guest.path}/vm/console/ticket`,
    );
    const origin = berth.origin.replace('http', 'ws');
    const socket = new WebSocket(`${origin}${guest.path}/vm/console/stream?ticket=${made.ticket}`);
    await once(socket, 'open');
    return socket;
  }

  test('the live console is a root shell after Enter; its output is in the log; it ends with the VM', async () => {
    const socket = await openConsole();
    let shown = '';
    socket.on('message', (data) => {
      shown += data.toString();
    });
    const ended = once(socket, 'close');
    socket.send('\r');
    await until('a prompt is there', () => shown.includes('# '));
    socket.send('echo "$(id -un)-$(tty)-$((6*7))"\r');
    await until('the shell answers', () => shown.includes('root-/dev/ttyS0-42'));
    assert.match(await log(), /root-\/dev\/ttyS0-42/);
    const timed = await berth.client.expect<string>(200, 'GET', `${guest.path}/vm/console?timestamps=true`);
    const [, time] = /^(\S+) [^\n]*root-\/dev\/ttyS0-42/m.exec(timed) ?? [];
    assert.ok(Math.abs(Date.now() - Date.parse(time ?? '')) < 60_000, timed);
    await guest.stop();
    assert.equal((await ended)[0], 1000);
    assert.match(await log(), /root-\/dev\/ttyS0-42/);
    await guest.start();
  });

  test('a grown disk is larger in the guest, from its overlay and from the object store', async () => {
    const size = 'df --output=size -BM / | tail -1';
    const before_mib = Number.parseInt(await sh(size), 10);
    await sh('head -c 1000000 /dev/urandom > /srv/kept; sync; cp /srv/kept /srv/kept2; sync');
    const sum = await sh('sha256sum < /srv/kept');
    await guest.stop();
    await berth.client.expect(200, 'PATCH', guest.path, { disk_gib: 3 });
    await guest.start();
    const grown_mib = Number.parseInt(await sh(size), 10);
    assert.ok(grown_mib > before_mib + 900, `${before_mib} MiB became ${grown_mib}`);
    assert.equal(await sh('sha256sum < /srv/kept'), sum);
    // Beyond the old end.
    await sh('head -c 5000000 /dev/urandom > /srv/more; sync');
    const more = await sh('sha256sum < /srv/more');
    await guest.stop();
    // There is no template for this size: it boots.
    await berth.client.expect(200, 'PATCH', guest.path, { disk_gib: 5, cpus: 2, memory_mib: 300 });
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.ok(Number.parseInt(await sh(size), 10) > grown_mib + 1800);
    assert.equal(await sh('nproc'), '2');
    assert.deepEqual(await sh('sha256sum < /srv/kept; sha256sum < /srv/more'), `${sum}\n${more}`);
  });
});
