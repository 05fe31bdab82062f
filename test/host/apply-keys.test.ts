/** The script that a guest runs for its keys, as it is, in a folder that looks like a guest to it. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { applyKeys } from '../../src/host/guest/authorized-keys.ts';
import type { GuestCommands } from '../../src/host/guest/guest-agent.ts';
import { present } from '../../src/shared/assert.ts';
import { fingerprintOf } from '../../src/shared/ssh-fingerprint.ts';

const [A, B] = ['ssh-ed25519 AAAA', 'ssh-ed25519 BBBB'] as const;
const REPLACE = { what: 'replace', timeout_ms: 10_000 } as const;
const UPTIME_SECONDS = 5_000;

class Guest {
  readonly #root: string;
  #connections = 0;
  #ran: Record<string, unknown> = {};

  constructor(t: TestContext) {
    this.#root = mkdtempSync(join(tmpdir(), 'berth-keys-'));
    t.after(() => rmSync(this.#root, { recursive: true }));
    for (const folder of ['usr/lib/berth', 'run/berth', 'proc/1/fd', 'proc/net', 'dev']) {
      mkdirSync(this.path(folder), { recursive: true });
    }
    const busybox = ['/usr/bin/busybox', '/bin/busybox'].find((path) => existsSync(path));
    copyFileSync(present(busybox, 'busybox'), this.path('usr/lib/berth/busybox'));
    writeFileSync(this.path('dev/null'), '');
    writeFileSync(this.path('proc/uptime'), `${UPTIME_SECONDS}.00 0.00\n`);
    writeFileSync(this.path('proc/net/tcp'), '  sl  local_address rem_address   st\n');
    writeFileSync(this.path('run/berth/sshd.log'), '');
  }

  path(name: string): string {
    return join(this.#root, name);
  }
  get agent(): GuestCommands {
    return this;
  }
  get keys(): string {
    return readFileSync(this.path('run/berth/authorized_keys'), 'utf8');
  }
  /** The processes of these connections. */
  get killed(): string[] {
    const file = this.path('run/berth/killed');
    return existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : [];
  }

  /** A connection whose sshd has run for so long; answers its port and the id of that process. */
  connect(seconds: number): { port: number; pid: string } {
    this.#connections += 1;
    const [port, inode, pid] = [
      50_000 + this.#connections,
      700 + this.#connections,
      `${this.#connections}99`,
    ];
    const remote = `0202000A:${port.toString(16).toUpperCase()}`;
    const row = `   1: 0100007F:0016 ${remote} 01 00000000:00000000 00:00000000 00000000     0        0 ${inode} 1\n`;
    writeFileSync(this.path('proc/net/tcp'), row, { flag: 'a' });
    mkdirSync(this.path(`proc/${pid}/fd`), { recursive: true });
    symlinkSync(`socket:[${inode}]`, this.path(`proc/${pid}/fd/4`));
    writeFileSync(this.path(`proc/${pid}/comm`), 'sshd\n');
    const started = (UPTIME_SECONDS - seconds) * 100;
    writeFileSync(this.path(`proc/${pid}/stat`), `${pid} (sshd) S ${'0 '.repeat(18)}${started} 0\n`);
    this.log(`Connection from 10.0.2.2 port ${port} on 10.0.2.15 port 22 rdomain ""`);
    return { port, pid };
  }
  accept(port: number, key: string): void {
    this.log(`Accepted publickey for root from 10.0.2.2 port ${port} ssh2: ED25519 ${fingerprintOf(key)}`);
  }
  log(line: string): void {
    writeFileSync(this.path('run/berth/sshd.log'), `${line}\r\n`, { flag: 'a' });
  }

  async execute(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'guest-exec-status') return this.#ran;
    const [shell, flag, script, ...rest] = args['arg'] as string[];
    // No process of this machine is killed, and nothing else runs in the folder.
    const own = `kill() { shift; echo "$*" >> /run/berth/killed; }\nflock() { :; }\n${script}`;
    const ran = spawnSync(
      '/usr/sbin/chroot',
      [this.#root, String(args['path']), String(shell), String(flag), own, ...rest],
      { env: {}, input: Buffer.from(String(args['input-data']), 'base64') },
    );
    const [out, err] = [ran.stdout.toString('base64'), ran.stderr.toString('base64')];
    this.#ran = { exited: true, exitcode: ran.status, 'out-data': out, 'err-data': err };
    return { pid: 1 };
  }
}

test("a guest that got keys while the host's clock was ahead accepts newer ones at the second attempt", async (t) => {
  const guest = new Guest(t);
  const before = Date.now() + 3_600_000;
  writeFileSync(guest.path('run/berth/keys.sequence'), `${before}\n`);
  await assert.rejects(applyKeys(guest.agent, [A], REPLACE), /exit code 4/);
  assert.deepEqual(await applyKeys(guest.agent, [A], REPLACE), { ended: 0, young: 0 });
  assert.equal(guest.keys, `${A}\n`);
  assert.equal(readFileSync(guest.path('run/berth/keys.sequence'), 'utf8'), `${before + 1}\n`);
});

test('the sequence number of one guest, or nonsense from it, does not affect another guest', async (t) => {
  const [guest, other] = [new Guest(t), new Guest(t)];
  for (const said of ['9'.repeat(15), '9'.repeat(18)]) {
    writeFileSync(guest.path('run/berth/keys.sequence'), `${said}\n`);
    await assert.rejects(applyKeys(guest.agent, [A], REPLACE), /exit code 4/);
  }
  await applyKeys(other.agent, [A], REPLACE);
  const sequence = Number(readFileSync(other.path('run/berth/keys.sequence'), 'utf8'));
  assert(sequence <= Date.now(), `${sequence}`);
});

test('an older call that a hung guest agent executes late changes nothing', async (t) => {
  const guest = new Guest(t);
  let kept: Record<string, unknown> = {};
  const hung = {
    execute: async (command: string, args: Record<string, unknown>) => {
      if (command === 'guest-exec') kept = args;
      throw new Error('no answer');
    },
  };
  await assert.rejects(applyKeys(hung, [A, B], REPLACE), /no answer/);
  writeFileSync(guest.path('run/berth/keys.sequence'), `${Date.now() + 1}\n`);
  writeFileSync(guest.path('run/berth/authorized_keys'), `${A}\n`);
  await guest.execute('guest-exec', kept);
  const { exitcode } = (await guest.execute('guest-exec-status', {})) as { exitcode: number };
  assert.equal(exitcode, 4);
  assert.equal(guest.keys, `${A}\n`);
});

test('a sequence that could not be stored blocks no key', async (t) => {
  const guest = new Guest(t);
  writeFileSync(guest.path('run/berth/keys.sequence'), '');
  await applyKeys(guest.agent, [A], REPLACE);
  assert.equal(guest.keys, `${A}\n`);
});

test('connections of revoked keys end, and those that the log does not contain', async (t) => {
  const guest = new Guest(t);
  const [mine, theirs, half] = [guest.connect(300), guest.connect(300), guest.connect(300)];
  guest.accept(mine.port, A);
  guest.accept(theirs.port, B);
  // Not authenticated yet; and older than sshd lets one be.
  guest.connect(30);
  const end = { what: 'end', timeout_ms: 10_000 } as const;
  assert.deepEqual(await applyKeys(guest.agent, [A], end), { ended: 2, young: 0 });
  assert.deepEqual(guest.killed.sort(), [theirs.pid, half.pid].sort());
});

test('a young connection that the log does not know yet is checked again', async (t) => {
  const guest = new Guest(t);
  guest.connect(3);
  const old = guest.connect(12);
  writeFileSync(guest.path('run/berth/sshd.log'), '');
  const look = { what: 'look', timeout_ms: 10_000 } as const;
  assert.deepEqual(await applyKeys(guest.agent, [A], look), { ended: 1, young: 1 });
  assert.deepEqual(guest.killed, [old.pid]);
});
