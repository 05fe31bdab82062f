import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { newId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import { fingerprintOf } from '../../shared/ssh-fingerprint.ts';
import {
  fingerprintOfLine,
  type KeyedMachine,
  KeyPusher,
  keysAreAmong,
  linesWithEnvironment,
} from './authorized-keys.ts';
import { GuestAgentError } from './guest-agent.ts';

const [ED25519, SECURITY_KEY] = ['ssh-ed25519 AAAA', 'sk-ssh-ed25519@openssh.com BBBB'] as const;

test('a line has the options of sshd before its key, and keeps its fingerprint', () => {
  const [line, other] = linesWithEnvironment(
    [ED25519, SECURITY_KEY],
    ['BERTH_SECRET_A=berth-secret-0', 'SSL_CERT_FILE=/run/x'],
  );
  assert.equal(line, `environment="BERTH_SECRET_A=berth-secret-0",environment="SSL_CERT_FILE=/run/x" ${A}`);
  assert.equal(fingerprintOfLine(line ?? ''), fingerprintOf(A));
  assert.equal(fingerprintOfLine(other ?? ''), fingerprintOf(B));
});

test('without an environment a line is the key', () => {
  assert.deepEqual(linesWithEnvironment([A], []), [A]);
});

test('lines with another environment allow the same keys', () => {
  const before = linesWithEnvironment([A], ['X=1']);
  assert.equal(keysAreAmong(before, [ED25519, SECURITY_KEY]), true);
  assert.equal(keysAreAmong(linesWithEnvironment([ED25519, SECURITY_KEY], ['X=1']), before), false);
});

const [A, B, C] = ['ssh-ed25519 AAAA', 'ssh-ed25519 BBBB', 'ssh-ed25519 CCCC'] as const;
const LOOK_AGAIN_MS = 2_000;

/** A guest agent that runs its commands, including apply-keys.sh, and answers at once, late or never. */
class Guest {
  keys: readonly string[] = [];
  /** The requests, each with the keys in force at that time. */
  readonly calls: string[] = [];
  lost = 0;
  answer: () => Promise<unknown> = async () => undefined;

  async execute(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'guest-exec') {
      const what = (args['arg'] as string[])[4] ?? '';
      const input = Buffer.from(String(args['input-data'] ?? ''), 'base64').toString();
      if (what !== 'look') this.keys = input.split('\n').filter((line) => line !== '');
      this.#note(what);
      return { pid: 1 };
    }
    await this.answer();
    if (command === 'guest-file-write') return this.#write(String(args['buf-b64']));
    if (command.startsWith('guest-file-')) return 7;
    return { exited: true, exitcode: 0, 'out-data': Buffer.from('0 0\n').toString('base64') };
  }

  #write(base64: string): { count: number } {
    const bytes = Buffer.from(base64, 'base64');
    this.keys = bytes.toString().trimEnd().split('\n');
    this.#note('file');
    return { count: bytes.length };
  }

  #note(what: string): void {
    this.calls.push(`${what} ${this.keys.map((line) => line.slice(-1)).join('')}`);
  }
}

async function until(condition: () => boolean): Promise<void> {
  for (const deadline = performance.now() + 20_000; !condition(); ) {
    assert(performance.now() < deadline, `in vain: ${condition}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** The state after a restart of the agent. */
const lost = (guest: Guest): never => {
  guest.lost += 1;
  throw new GuestAgentError('guest-exec-status', 'PID 1 does not exist');
};

function scene(given_keys: readonly string[] | null = null) {
  const guest = new Guest();
  const machine: { -readonly [Name in keyof KeyedMachine]: KeyedMachine[Name] } = {
    record: { vm_id: newId('vm'), epoch: 1 },
    ...{ agent: guest, gone: false, view: 'up', resets: 0, may_be_connected: false, given_keys },
    noteGiven(lines) {
      machine.given_keys = lines;
    },
  };
  const reports: string[] = [];
  const names = new Map([A, B, C].map((line) => [fingerprintOf(line), line.slice(-1)]));
  const keys = new KeyPusher(createLog('test', 'silent'), async (_, fingerprints) => {
    reports.push(fingerprints.map((each) => names.get(each)).join(''));
  });
  return { guest, keys, reports, machine, followed: machine };
}

/** A guest that is up with these keys. */
async function upWith(lines: readonly string[]) {
  const all = scene();
  all.keys.want(lines);
  await all.keys.apply(all.followed);
  all.keys.follow(all.followed);
  return all;
}

/** The same with a revoked key: the connections that it left open must be checked again. */
async function revoked(t: TestContext) {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const all = await upWith([A, B]);
  all.keys.want([A]);
  await until(() => all.reports.length === 1);
  assert.equal(all.guest.calls.at(-1), 'end A');
  return all;
}

test('a key that is revoked before the guest has confirmed it is removed, and is reported as possibly in force', async () => {
  const { guest, keys, reports } = await upWith([A]);
  guest.answer = async () => guest.keys.includes(B) && lost(guest);
  keys.want([A, B]);
  await until(() => guest.lost > 0);
  keys.want([A]);
  await until(() => reports.length === 2);
  assert.deepEqual(guest.keys, [A]);
  assert.deepEqual(reports, ['AB', 'A']);
});

test('a key that may be in force is reported also while the guest is silent, and again once it is applied', async () => {
  const { guest, keys, reports } = await upWith([A, C]);
  const silence = Promise.withResolvers<void>();
  guest.answer = () => silence.promise;
  keys.want([A, B, C]);
  await until(() => guest.calls.at(-1) === 'replace ABC');
  keys.want([A, C]);
  await until(() => reports.length === 1);
  keys.want([B, C]);
  await until(() => reports.length === 2);
  assert.deepEqual(reports, ['ACB', 'ACB']);
  silence.resolve();
  await until(() => reports.at(-1) === 'BC');
  assert.deepEqual(guest.keys, [B, C]);
});

test('a key that is added again before the guest has confirmed its removal is applied', async () => {
  const { guest, keys, reports } = await upWith([A, B]);
  guest.answer = async () => guest.keys.includes(B) || lost(guest);
  keys.want([A]);
  await until(() => guest.lost > 0);
  keys.want([A, B]);
  await until(() => reports.at(-1) === 'AB');
  assert.deepEqual(guest.keys, [A, B]);
});

test('a guest that was started with its keys gets no call, unless it was sent others since', async () => {
  const { guest, keys, followed } = scene([A]);
  keys.want([A]);
  assert.deepEqual(await keys.apply(followed), [fingerprintOf(A)]);
  assert.deepEqual(guest.calls, []);
  keys.want([A, B]);
  guest.answer = async () => lost(guest);
  await assert.rejects(keys.apply(followed), GuestAgentError);
  assert.deepEqual(guest.keys, [A, B]);
  guest.answer = async () => undefined;
  keys.want([A]);
  await keys.apply(followed);
  assert.deepEqual(guest.keys, [A]);
});

test('a guest that was started without keys gets the first set as a file, and later sets by the script', async () => {
  const { guest, keys, followed } = scene([]);
  keys.want([A, B]);
  assert.deepEqual(await keys.apply(followed), [A, B].map(fingerprintOf));
  keys.want([A]);
  await keys.apply(followed);
  assert.deepEqual(guest.calls, ['file AB', 'replace A']);
});

test('if the write of the key file is unconfirmed, the script sets the keys', async () => {
  const { guest, keys, followed } = scene([]);
  keys.want([A, B]);
  guest.answer = async () => guest.keys.length > 0 && lost(guest);
  await assert.rejects(keys.apply(followed), GuestAgentError);
  assert.deepEqual(guest.keys, [A, B]);
  guest.answer = async () => undefined;
  keys.want([A]);
  assert.deepEqual(await keys.apply(followed), [fingerprintOf(A)]);
  assert.deepEqual(guest.calls, ['file AB', 'replace A']);
});

test('after a revocation connections are checked again, also while a key is being added', async (t) => {
  const { guest, keys, reports } = await revoked(t);
  const silence = Promise.withResolvers<void>();
  guest.answer = () => silence.promise;
  keys.want([A, C]);
  await until(() => guest.calls.at(-1) === 'replace AC');
  t.mock.timers.tick(LOOK_AGAIN_MS);
  assert.equal(guest.calls.at(-1), 'replace AC');
  silence.resolve();
  await until(() => reports.at(-1) === 'AC');
  t.mock.timers.tick(LOOK_AGAIN_MS);
  await until(() => guest.calls.at(-1) === 'look AC');
});

test('… while a suspend is tried, and fails', async (t) => {
  const { guest, keys, followed } = await revoked(t);
  await keys.pause();
  t.mock.timers.tick(LOOK_AGAIN_MS);
  assert.equal(guest.calls.at(-1), 'end A');
  keys.follow(followed);
  t.mock.timers.tick(LOOK_AGAIN_MS);
  await until(() => guest.calls.at(-1) === 'look A');
});

test('… and when an adopted guest is reported as running only later', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { guest, keys, machine, followed } = scene();
  machine.may_be_connected = true;
  keys.want([A]);
  await keys.apply(followed);
  t.mock.timers.tick(LOOK_AGAIN_MS);
  assert.deepEqual(guest.calls, ['end A']);
  keys.follow(followed);
  t.mock.timers.tick(LOOK_AGAIN_MS);
  await until(() => guest.calls.at(-1) === 'look A');
});

test('connections are not checked after a reset, nor after the close', async (t) => {
  for (const end of ['reset', 'close'] as const) {
    const { guest, keys, machine, followed } = await revoked(t);
    if (end === 'reset') machine.resets += 1;
    else await keys.close();
    keys.follow(followed);
    t.mock.timers.tick(2 * LOOK_AGAIN_MS);
    assert.equal(guest.calls.at(-1), 'end A');
    t.mock.timers.reset();
  }
});
