/** What is kept of execs on their host. test/host/execs.test.ts has those of a guest. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { ExecEnd } from '../../protocol/exec-types.ts';
import { present } from '../../shared/assert.ts';
import { type ExecId, newId } from '../../shared/ids.ts';
import { GuestAgent } from '../guest/guest-agent.ts';
import { vmSockets } from '../qemu/qemu-command.ts';
import { ExecOutput, type ExecRecord, writeExecRecord } from './exec-output.ts';
import { VmExecs } from './vm-execs.ts';

const MIB = 1024 * 1024;
const END: ExecEnd = {
  ...{ state: 'exited', exit_code: 0, signal: null, timed_out: false },
  ended_at: '2026-01-01T00:00:00.000Z',
};

function folderFor(context: { after: (end: () => void) => void }): string {
  const root = mkdtempSync(join(tmpdir(), 'berth-execs-'));
  context.after(() => rmSync(root, { recursive: true, force: true }));
  mkdirSync(join(root, 'execs'));
  return root;
}

/** An exec with output, as the agent before has left it. */
function leave(root: string, mib: number, more: Partial<ExecRecord> = {}): ExecId {
  const id = newId('exec');
  const folder = join(root, 'execs');
  const output = new ExecOutput(folder, id, 0);
  for (let at = 0; at < mib; at++) output.append(at * MIB, 1, Buffer.alloc(MIB, 'x'));
  const known = { session: 's', end: END, output_bytes: mib * MIB, streamed_input: false, reported: true };
  writeExecRecord(folder, { id, ...known, ...more });
  return id;
}

test('64 MiB of output are kept for an instance; that of the oldest ended exec goes first', (context) => {
  const root = folderFor(context);
  const running = leave(root, 8, { end: null });
  const ended = Array.from({ length: 9 }, () => leave(root, 8)).sort();
  const execs = new VmExecs(root, () => undefined);
  execs.tidy();
  const kept = (id: ExecId) => execs.find(id)?.output.kept_bytes;
  assert.deepEqual(ended.map(kept), [0, 0, ...Array(7).fill(8 * MIB)]);
  assert.equal(kept(running), 8 * MIB);
  // The next agent says the same: its readers are told how much is lost.
  const { start, end } = present(
    new VmExecs(root, () => undefined).find(present(ended[0], 'id')),
    'exec',
  ).output;
  assert.deepEqual([start, end], [8 * MIB, 8 * MIB]);
});

test('running execs share the room once no ended one has output: each loses its oldest', (context) => {
  const root = folderFor(context);
  const running = Array.from({ length: 9 }, () => leave(root, 8, { end: null }));
  const execs = new VmExecs(root, () => undefined);
  execs.tidy();
  const kept = running.map((id) => execs.find(id)?.output.kept_bytes ?? 0);
  assert.ok(kept.reduce((all, bytes) => all + bytes, 0) <= 64 * MIB);
  assert.ok(
    kept.every((bytes) => bytes >= 7 * MIB),
    String(kept),
  );
});

test('the last 100 ended execs are kept, and every end that is not reported yet', (context) => {
  const root = folderFor(context);
  const unreported = leave(root, 0, { reported: false });
  const ended = Array.from({ length: 103 }, () => leave(root, 0)).sort();
  const execs = new VmExecs(root, () => undefined);
  execs.tidy();
  assert.deepEqual(
    [unreported, ...ended].map((id) => execs.find(id) !== undefined),
    [true, false, false, false, ...Array(100).fill(true)],
  );
  assert.equal(readdirSync(join(root, 'execs')).length, 101);
});

/** A guest's supervisor that has no execs. */
function supervisorAt(path: string, session: string): Server {
  const frame = (type: string, payload: string) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(27 + payload.length);
    return Buffer.concat([length, Buffer.from(type.padEnd(27, '\0') + payload)]);
  };
  return createServer((socket) => {
    const heard: Buffer[] = [];
    socket.on('data', (chunk) => {
      heard.push(chunk);
      const text = Buffer.concat(heard).toString('latin1');
      const hello = text.split('\x7e').find((each) => each.length >= 31);
      if (!hello || socket.bytesWritten > 0) return;
      const nonce = hello.replaceAll('\x7d\x5e', '\x7e').replaceAll('\x7d\x5d', '\x7d').slice(31);
      socket.write(Buffer.concat([Buffer.from(nonce, 'latin1'), frame('H', session), frame('Z', '')]));
    });
  }).listen(path);
}

test('an exec whose supervisor is gone is lost with its boot, unless another one of that boot answers', async (context) => {
  const [boot, supervisor, other] = ['a', 'b', 'c'].map((each) => each.repeat(32));
  for (const [session, lost_with] of [
    [`${boot}${other}`, 'supervisor'],
    [`${other}${other}`, 'boot'],
  ] as const) {
    const root = folderFor(context);
    const server = supervisorAt(vmSockets(root).execs, session);
    const id = leave(root, 0, { end: null, session: `${boot}${supervisor}` });
    const execs = new VmExecs(root, () => undefined);
    const agent = new GuestAgent(vmSockets(root).agent);
    context.after(() => {
      execs.close();
      agent.close();
      server.close();
    });
    execs.look({ view: 'up', resets: 0, agent, folder: { runtime: root } });
    const exec = execs.find(id);
    while (exec?.end === null) await exec.changed.wait({ signal: AbortSignal.timeout(60_000) });
    assert.partialDeepStrictEqual(exec?.end, { state: 'lost', lost_with });
  }
});
