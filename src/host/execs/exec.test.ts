import assert from 'node:assert/strict';
import { appendFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { present } from '../../shared/assert.ts';
import { newId } from '../../shared/ids.ts';
import { HostExec, type Send } from './exec.ts';
import { TO_GUEST } from './exec-channel.ts';
import { ExecOutput, readExecRecords } from './exec-output.ts';

const MIB = 1024 * 1024;
const MINUTE_MS = 60_000;
const LISTED = { base: 0, received: 0, input_ended: false, waits: false };

function folderFor(context: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'bex-'));
  context.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A running exec, and what its guest was told last. */
function execIn(folder: string, id = newId('exec')) {
  const record = { id, session: 's', end: null, output_bytes: 0, streamed_input: false, reported: false };
  const exec = new HostExec(folder, record);
  const guest = { acknowledged: 0, waits: false, input_ended: false };
  const send: Send = (type, payload) => {
    const bytes = Buffer.from(payload ?? []);
    if (type === TO_GUEST.acknowledge) guest.acknowledged = Number(bytes.readBigUInt64BE());
    if (type === TO_GUEST.wait) guest.waits = bytes[0] === 1;
    if (type === TO_GUEST.eof) guest.input_ended = true;
  };
  /** As a supervisor does that sends all it has. */
  const print = (mib: number) => {
    for (let count = 0; count < mib; count++) exec.receive(exec.output.end, 1, Buffer.alloc(MIB, 'x'));
    exec.acknowledge(send);
  };
  return { exec, guest, send, print };
}

test('an exec waits for a reader that is behind, however long', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { exec, guest, send, print } = execIn(folderFor(t));
  exec.waitFor({ offset: 0 }, send);
  print(9);
  t.mock.timers.tick(60 * MINUTE_MS);
  assert.deepEqual([guest.waits, guest.acknowledged, exec.output.start], [true, MIB, 0]);
});

test('an exec waits a minute for a lost reader, which finds all that it had not read; then it goes on', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { exec, guest, send, print } = execIn(folderFor(t));
  const leave = exec.waitFor({ offset: 2 * MIB }, send);
  leave(true);
  print(11);
  t.mock.timers.tick(MINUTE_MS - 1);
  assert.deepEqual([guest.waits, guest.acknowledged, exec.output.start], [true, 3 * MIB, 0]);
  t.mock.timers.tick(1);
  print(1);
  assert.deepEqual([guest.waits, guest.acknowledged], [false, 12 * MIB]);
  assert.ok(exec.output.start >= 3 * MIB, 'the oldest bytes go');
});

test('an exec does not wait for a reader that has left on purpose, and for a lost one only until another comes', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { exec, guest, send, print } = execIn(folderFor(t));
  exec.waitFor({ offset: 0 }, send)(false);
  print(3);
  assert.deepEqual([guest.waits, guest.acknowledged], [false, 3 * MIB]);
  exec.waitFor({ offset: 0 }, send)(true);
  const leave = exec.waitFor({ offset: 3 * MIB }, send);
  print(3);
  assert.deepEqual([guest.waits, guest.acknowledged], [true, 4 * MIB]);
  leave(false);
  assert.deepEqual([guest.waits, guest.acknowledged], [false, 6 * MIB]);
});

test('the next agent waits for the readers of the one before it, and keeps what they may not have', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const folder = folderFor(t);
  const id = newId('exec');
  const before = execIn(folder, id);
  before.exec.waitFor({ offset: 4 * MIB }, before.send);
  before.print(6);
  assert.equal(before.guest.acknowledged, 5 * MIB);
  const next = execIn(folder, id);
  next.exec.resume(next.send, 's', { ...LISTED, base: 5 * MIB, waits: true });
  assert.deepEqual([next.guest.waits, next.guest.acknowledged], [true, 5 * MIB]);
  // Its supervisor has kept 8 MiB meanwhile.
  next.print(7);
  assert.equal(next.exec.output.start, 0);
  assert.equal(next.guest.acknowledged, 5 * MIB);
  t.mock.timers.tick(MINUTE_MS);
  assert.deepEqual([next.guest.waits, next.guest.acknowledged], [false, 13 * MIB]);
});

test('output is kept twice as long for a reader, and no longer: a guest may ignore that it must wait', (t) => {
  const { exec, send, print } = execIn(folderFor(t));
  exec.waitFor({ offset: 0 }, send);
  print(40);
  assert.ok(exec.output.kept_bytes <= 17 * MIB);
});

test('a piece that a kill has cut off is written again, and nothing before it is lost', (t) => {
  const folder = folderFor(t);
  const id = newId('exec');
  const output = new ExecOutput(folder, id, 0);
  output.append(0, 1, Buffer.from('whole '));
  const [file = ''] = readdirSync(folder);
  appendFileSync(join(folder, file), Buffer.from([1, 0, 0, 9, 0x63, 0x75]));
  const next = new ExecOutput(folder, id, 0);
  assert.equal(next.end, 6);
  next.append(6, 1, Buffer.from('cut off'));
  const text = (of: ExecOutput) => Buffer.concat(of.read(0).map(({ data }) => data)).toString();
  assert.equal(text(new ExecOutput(folder, id, 0)), 'whole cut off');
  // The file of the next mebibyte had just begun.
  next.append(13, 1, Buffer.alloc(MIB));
  const at = next.end;
  appendFileSync(join(folder, `${id}.${at}`), Buffer.from([1, 0]));
  const last = new ExecOutput(folder, id, 0);
  assert.deepEqual([last.start, last.end], [0, at]);
});

/** Input is sent, and ended, in the order of the calls. */
const takesInput = (exec: HostExec, send: Send) =>
  exec.write(send, Buffer.from('more'), false, new AbortController().signal);

/** Of a stream that was lost after input had come over it. */
function lostInput(t: TestContext) {
  const scene = execIn(folderFor(t));
  const stream = scene.exec.addInputStream();
  stream.noteInput();
  stream.end(true);
  return scene;
}

test('input that came over a stream ends a minute after the stream was lost, time without the control plane not counted', async (t) => {
  const { exec, guest, send } = lostInput(t);
  exec.passTime(send, MINUTE_MS - 1);
  exec.passTime(send, 0);
  assert.equal(guest.input_ended, false);
  exec.passTime(send, 1);
  assert.equal(await takesInput(exec, send), false);
  assert.equal(guest.input_ended, true);
});

test('input stays open while another stream is attached, after a request with input, after one that left, and without a stream', async (t) => {
  const attached = lostInput(t);
  const other = attached.exec.addInputStream();
  const requested = lostInput(t);
  requested.exec.noteRequestedInput();
  const left = execIn(folderFor(t));
  const stream = left.exec.addInputStream();
  stream.noteInput();
  stream.end(false);
  const never_used = execIn(folderFor(t));
  never_used.exec.addInputStream().end(true);
  for (const { exec, send, guest } of [attached, requested, left, never_used]) {
    exec.passTime(send, 10 * MINUTE_MS);
    assert.equal(await takesInput(exec, send), true);
    assert.equal(guest.input_ended, false);
  }
  other.end(true);
  attached.exec.passTime(attached.send, MINUTE_MS);
  assert.equal(await takesInput(attached.exec, attached.send), false);
});

test('the next agent ends the input of a stream that was lost with the agent before it', async (t) => {
  const folder = folderFor(t);
  const id = newId('exec');
  const before = execIn(folder, id);
  before.exec.addInputStream().noteInput();
  const exec = new HostExec(folder, present(readExecRecords(folder)[0], 'record'));
  exec.passTime(before.send, MINUTE_MS);
  assert.equal(await takesInput(exec, before.send), false);
  assert.equal(before.guest.input_ended, true);
});

test('an exec whose input is open waits for nobody while nobody is attached', (t) => {
  const { exec, send } = execIn(folderFor(t));
  assert.equal(exec.waits_for_nobody, true);
  const leave = exec.addReader();
  assert.equal(exec.waits_for_nobody, false);
  leave();
  exec.resume(send, 's', { ...LISTED, input_ended: true });
  assert.equal(exec.waits_for_nobody, false);
});
