/**
 * Root of one guest attacks the host through its guest agent and its console. Meanwhile another user's VM flushes, runs
 * commands, stops and starts, and the host's agent does not grow.
 */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import type { ExecResult } from '../../src/protocol/host-calls.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { behave, floodConsole, HOSTILE_MODES, turnHostile } from '../support/hostile-guest.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { SshClient } from '../support/ssh-client.ts';
import { until, untilWorks } from '../support/waiting.ts';

/** What the host's agent may grow by, of whatever guests do. */
const GROWTH_KIB = 64 * 1024;
const SILENT = 'guest_agent_silent';

describe('a hostile guest', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let hostile: GuestInstance;
  let neighbour: GuestInstance;
  /** What the host's agent has taken at most while both guests were well. */
  let calm_kib: number;

  const exec = async ({ path }: GuestInstance, command: string[], timeout_seconds = 60) =>
    berth.client.request<ExecResult>('POST', `${path}/vm/exec`, { command, timeout_seconds });
  const echoes = async (text: string) => {
    const { status, body } = await exec(neighbour, ['echo', text]);
    assert.deepEqual([status, body.stdout], [200, `${text}\n`]);
  };
  const isFlushed = async (what: string) => {
    let attempt = 0;
    const { segments } = await neighbour.flushFrozen(() =>
      neighbour.sh(`echo ${what} ${attempt++} > /srv/file; sync`),
    );
    assert.ok(segments > 0);
  };
  /** The most memory that it has had since {@link forgetPeak}. */
  const peakKib = () => Number(/VmHWM:\s+(\d+) kB/.exec(status())?.[1]);
  const status = () => readFileSync(`/proc/${berth.role('agent').pid}/status`, 'latin1');
  const forgetPeak = () => writeFileSync(`/proc/${berth.role('agent').pid}/clear_refs`, '5');
  const isSilent = () =>
    hostile.becomes(
      'reported as silent',
      ({ state, reason }) => state === 'running' && reason?.code === SILENT,
    );
  /** The last cut-off may be of a minute, and a busy guest's first answer may still be wrong. */
  const isReady = () =>
    untilWorks(
      'its agent answers again',
      async () => {
        await exec(hostile, ['true'], 5);
        assert.equal((await hostile.vm()).reason?.code, 'ready');
      },
      { timeout_ms: 240_000 },
    );

  before(async () => {
    berth = await Installation.start();
    [hostile, neighbour] = await Promise.all([
      GuestInstance.running(berth, 'hostile'),
      GuestInstance.running(berth, 'neighbour'),
    ]);
    await turnHostile(hostile);
  });
  after(() => berth?.dispose());

  test('whatever its agent answers, delays no other guest, is reported as silent, and costs the host no memory', async (t) => {
    // What these take themselves is not the guest's.
    await isFlushed('before');
    await echoes('before');
    forgetPeak();
    calm_kib = peakKib();
    await floodConsole(hostile);
    for (const mode of HOSTILE_MODES) {
      await behave(hostile, mode);
      const asked = exec(hostile, ['true'], 2);
      const flushed = hostile.flush();
      await isFlushed(mode);
      await echoes(mode);
      // In one way or another: it may lie, and be believed about itself.
      assert.ok([200, 409, 502, 503, 500].includes((await asked).status), `${(await asked).status}`);
      assert.match((await flushed).consistency, /^(crash|filesystem)$/);
      if (mode !== 'order') await isSilent();
      t.diagnostic(`${mode}: the agent's peak is ${Math.round((peakKib() - calm_kib) / 1024)} MiB above`);
    }
    assert.ok(peakKib() - calm_kib < GROWTH_KIB, `${peakKib() - calm_kib} KiB`);
  });

  test('is responsive again once it behaves', async () => {
    await behave(hostile, 'good');
    await isReady();
    const { status, body } = await exec(hostile, ['echo', 'good']);
    assert.deepEqual([status, body.stdout], [200, 'good\n']);
  });

  test('does not keep another from stopping, starting and revoking a key', async () => {
    await behave(hostile, 'lists');
    await exec(hostile, ['true'], 2);
    await isSilent();
    const key = new SshClient(berth.data_dir, 'revoked');
    const body = { name: 'revoked', public_key: key.public_key };
    await neighbour.stop();
    const { id } = await berth.client.expect<{ id: string }>(201, 'POST', '/v1/me/ssh-keys', body);
    await neighbour.start();
    key.know(neighbour.target.known_hosts);
    const kept = key.start(neighbour.target, { command: 'echo in; sleep 600' });
    await until('the key lets in', () => kept.printed().includes('in\n'));
    await berth.client.expect(204, 'DELETE', `/v1/me/ssh-keys/${id}`);
    await kept.ended;
    await until('the key is refused', async () =>
      /Permission denied/.test((await key.run(neighbour.target, 'true')).stderr),
    );
    assert.equal(await neighbour.shAgain('echo on'), 'on');
  });

  test('is adopted with the others by a restarted agent', async () => {
    const machines = [hostile.qemu, neighbour.qemu];
    await berth.kill('agent');
    await berth.recovered('agent');
    await until('the neighbour answers', async () => (await exec(neighbour, ['true'])).status === 200);
    await isFlushed('adopted');
    assert.equal((await hostile.flush()).consistency, 'crash');
    await isSilent();
    assert.deepEqual([hostile.qemu, neighbour.qemu], machines);
    assert.ok(peakKib() - calm_kib < GROWTH_KIB, `${peakKib() - calm_kib} KiB`);
  });

  test('is stopped by force, and starts again with its writes', async () => {
    await hostile.stop({ force: true });
    assert.equal((await hostile.start()).reason?.code, 'ready');
    assert.equal(
      await hostile.shAgain('ls /usr/lib/berth/guest-agent.real'),
      '/usr/lib/berth/guest-agent.real',
    );
    await neighbour.stop();
  });

  test('puts no terminal escape into the reason of its end', async () => {
    await hostile.shAgain('printf "\\033]0;owned\\007\\033[2J\\n" > /dev/ttyS0');
    hostile.installation.ssh.start(hostile.target, { command: 'echo c > /proc/sysrq-trigger' });
    const { reason } = await hostile.becomes('failed', ({ state }) => state === 'failed');
    assert.equal(reason?.code, 'guest_panicked');
    assert.match(reason.message, /Kernel panic/);
    assert.doesNotMatch(reason.message, /\p{Cc}|owned/u);
  });
});
