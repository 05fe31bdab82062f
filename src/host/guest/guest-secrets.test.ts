import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLog } from '../../shared/log.ts';
import { GuestAgentError } from './guest-agent.ts';
import { type MachineWithSecrets, SecretPusher } from './guest-secrets.ts';

/** A guest agent that runs apply-secrets.sh, or fails as often as it is told to. */
class Guest {
  /** What sessions have; a call each. */
  readonly applied: string[] = [];
  has_trusted = false;
  failures = 0;
  readonly machine = {
    agent: this,
    view: 'up' as MachineWithSecrets['view'],
    gone: false,
    resets: 0,
  };

  async execute(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'guest-file-open') {
      if (!this.has_trusted)
        throw new GuestAgentError(command, 'failed to open file: No such file or directory');
      return 7;
    }
    if (command.startsWith('guest-file-')) return { 'buf-b64': '' };
    if (command === 'guest-exec') {
      if (this.failures-- > 0) throw new GuestAgentError(command, 'no process');
      const certificate = (args['arg'] as string[])[5] ?? '';
      const input = Buffer.from(String(args['input-data']), 'base64').toString();
      this.has_trusted = certificate !== '';
      this.applied.push(`${certificate}:${input.replaceAll('\n', ';')}`);
      return { pid: 1 };
    }
    return { exited: true, exitcode: 0 };
  }
}

async function until(condition: () => boolean): Promise<void> {
  for (const deadline = performance.now() + 20_000; !condition(); ) {
    assert(performance.now() < deadline, `in vain: ${condition}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function scene() {
  const guest = new Guest();
  const pusher = new SecretPusher(createLog('test', 'silent'), () => guest.machine);
  const want = (...environment: string[]) => pusher.want({ environment, certificate: 'CA' });
  return { guest, pusher, want };
}

test('a guest that never had secrets runs nothing', async () => {
  const { guest, pusher, want } = scene();
  want();
  await pusher.apply(guest.machine);
  want('A=1');
  await until(() => guest.applied.length === 1);
  assert.deepEqual(guest.applied, ['CA:export A=1;']);
});

test('a change, and the end of the last secret, reach a guest that is up', async () => {
  const { guest, want } = scene();
  want('A=1');
  await until(() => guest.applied.length === 1);
  want('A=1', 'B=2');
  await until(() => guest.applied.length === 2);
  want();
  await until(() => guest.applied.length === 3);
  assert.deepEqual(guest.applied.slice(1), ['CA:export A=1;export B=2;', ':']);
});

test('what fails is tried again', async () => {
  const { guest, want } = scene();
  guest.failures = 2;
  want('A=1');
  await until(() => guest.applied.length === 1);
});

test('a booting guest gets them before it is up, and again after a reset, which empties its tmpfs', async () => {
  const { guest, pusher, want } = scene();
  guest.machine.view = 'booting';
  want('A=1');
  await pusher.apply(guest.machine);
  guest.machine.view = 'up';
  pusher.look();
  assert.equal(guest.applied.length, 1);
  guest.machine.view = 'booting';
  guest.machine.resets = 1;
  await pusher.apply(guest.machine);
  assert.equal(guest.applied.length, 2);
});
