/**
 * Execs in one real guest, by the libraries of src/host: what a host's agent does, what the guest's supervisor does while no agent
 * is there, and what the next agent finds. Needs the guest image (BERTH_TEST_IMAGE_DIR) and root.
 */
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { after, before, describe, test } from 'node:test';
import { createOverlay } from '../../src/host/disk/overlay-files.ts';
import type { HostExec } from '../../src/host/execs/exec.ts';
import { TO_GUEST } from '../../src/host/execs/exec-channel.ts';
import { serveReader } from '../../src/host/execs/host-execs.ts';
import { type ExecMachine, type StartCall, VmExecs } from '../../src/host/execs/vm-execs.ts';
import { GuestAgent } from '../../src/host/guest/guest-agent.ts';
import { guestExec } from '../../src/host/guest/guest-commands.ts';
import {
  filesOfVm,
  openJail,
  prepareRuntimeDir,
  VM_UID_BASE,
  VM_UID_COUNT,
} from '../../src/host/qemu/confinement.ts';
import { qemuArguments, type VmSpec, vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { killProcess, launchVm, type ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import type { QmpClient } from '../../src/host/qemu/qmp-client.ts';
import { FRAME, readOffset, StreamFrames, streamFrame } from '../../src/protocol/exec-types.ts';
import { present } from '../../src/shared/assert.ts';
import { type ExecId, newId } from '../../src/shared/ids.ts';
import { signalNumber } from '../../src/shared/signal-names.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const image_dir = process.env['BERTH_TEST_IMAGE_DIR'];
const skip = !image_dir
  ? 'BERTH_TEST_IMAGE_DIR names no guest image'
  : process.getuid?.() !== 0
    ? 'running a VM as another user takes root'
    : false;

describe('execs in a guest', { skip, timeout: 300_000 }, () => {
  const root = mkdtempSync(join(tmpdir(), 'bex-'));
  const runtime = join(root, 'run', 'vm');
  const instance_id = newId('inst');
  const vm_id = newId('vm');
  const uid = VM_UID_BASE + VM_UID_COUNT + 200_000 + (process.pid % 90_000);
  const user = { uid, gid: uid };
  let identity: ProcessIdentity | undefined;
  let qmp: QmpClient;
  let agent: GuestAgent;
  let machine: ExecMachine & { resets: number };
  let execs: VmExecs;
  let timer: NodeJS.Timeout;

  /** As a new agent would. */
  function takeOver(): void {
    execs = new VmExecs(root, () => undefined);
  }

  before(async () => {
    mkdirSync(join(root, 'run'), { mode: 0o711 });
    chmodSync(root, 0o711);
    prepareRuntimeDir(runtime, user.uid, user.gid);
    const disk = { folder: root, instance_id, owner: user, qemu_img_binary: 'qemu-img' };
    const { overlay } = await createOverlay({ ...disk, size_bytes: 2 * 1024 ** 3 });
    const at = (name: string) => join(image_dir ?? '', name);
    const spec: VmSpec = {
      ...{ instance_id, vm_id, cpus: 1, memory_mib: 256, accel: 'tcg', hostname: 'exec-test' },
      kernel_path: at('vmlinuz'),
      initrd_path: at('initrd.img'),
      overlay_path: overlay,
      base_path: at('rootfs.img'),
      runtime_dir: runtime,
      network: { kind: 'none' },
    };
    const { jail, problem } = await openJail(join(root, 'etc'));
    assert.ok(jail, problem ?? '');
    ({ identity, qmp } = await launchVm({
      qemu_binary: 'qemu-system-x86_64',
      arguments: qemuArguments(spec),
      run_as: user,
      jail: { jail, files: filesOfVm(spec) },
      runtime_dir: runtime,
      log_path: join(root, 'qemu.log'),
    }));
    agent = new GuestAgent(vmSockets(runtime).agent);
    await qmp.execute('cont');
    await agent.waitUntilUp(60_000);
    machine = { view: 'up', resets: 0, agent, folder: { runtime } };
    takeOver();
    timer = setInterval(() => execs.look(machine), 200);
  });

  after(async () => {
    clearInterval(timer);
    execs?.close();
    agent?.close();
    qmp?.close();
    if (identity) killProcess(identity, 'SIGKILL');
    rmSync(root, { recursive: true, force: true });
  });

  function callOf(command: string[], more: Partial<StartCall> = {}): StartCall {
    return {
      ...{ kind: 'exec_start', instance_id, vm_id, exec_id: newId('exec'), command, environment: [] },
      ...{ cwd: '/', user: 'root', tty: null, stdin: false, timeout_ms: null, ...more },
    };
  }

  async function started(command: string[], more: Partial<StartCall> = {}): Promise<HostExec> {
    const call = callOf(command, more);
    assert.equal(await execs.start(machine, call), null);
    return found(call.exec_id);
  }

  const found = (id: ExecId) => present(execs.find(id), 'exec');
  const sh = (line: string, more?: Partial<StartCall>) => started(['sh', '-c', line], more);
  const send = (exec: HostExec) => execs.sendTo(exec);
  const ended = async (exec: HostExec) => {
    await until('it has ended', async () => exec.end !== null, { timeout_ms: 60_000, every_ms: 5 });
    const { state, exit_code, signal, timed_out } = present(exec.end, 'end');
    return { state, exit_code, signal, timed_out };
  };
  const exited = (exit_code: number) => ({ state: 'exited', exit_code, signal: null, timed_out: false });
  function outputOf({ output }: HostExec, stream?: number): string {
    const parts: Buffer[] = [];
    for (let offset = output.start; offset < output.end; ) {
      for (const piece of output.read(offset)) {
        if (stream === undefined || piece.stream === stream) parts.push(piece.data);
        offset = piece.offset + piece.data.length;
      }
    }
    return Buffer.concat(parts).toString('latin1');
  }
  const never = new AbortController().signal;

  test('an exec runs with its arguments, environment, folder and user', async () => {
    const words = ['sh', '-c', 'echo "$0:$A:$PWD:$(id -un):$HOME:$(cat)"; echo problem >&2; exit 7', 'x y\n'];
    const exec = await started(words, { environment: ['A=b=c'], cwd: '/tmp', user: 'nobody' });
    assert.deepEqual(await ended(exec), exited(7));
    assert.equal(outputOf(exec, 1), 'x y\n:b=c:/tmp:nobody:/nonexistent:\n');
    assert.equal(outputOf(exec, 2), 'problem\n');
  });

  test('an unknown command ends with 127, one that cannot run with 126; a bad folder or user is refused', async () => {
    assert.deepEqual(await ended(await started(['no-such-command'])), exited(127));
    assert.deepEqual(await ended(await started(['/etc'])), exited(126));
    const field = async (more: Partial<StartCall>) =>
      (await execs.start(machine, callOf(['true'], more)))?.field;
    assert.deepEqual([await field({ cwd: '/none' }), await field({ user: 'none' })], ['cwd', 'user']);
  });

  test('a start that is repeated runs once', async () => {
    const call = callOf(['sh', '-c', 'echo once >> /tmp/starts; cat /tmp/starts']);
    await Promise.all([execs.start(machine, call), execs.start(machine, call)]);
    assert.equal(await execs.start(machine, call), null);
    await ended(found(call.exec_id));
    assert.equal(outputOf(found(call.exec_id)), 'once\n');
  });

  test('a signal reaches the process group, and the end names it', async () => {
    const exec = await sh('sleep 1000 & sleep 1000');
    send(exec)(TO_GUEST.signal, Buffer.of(present(signalNumber('SIGTERM'), 'signal')));
    assert.deepEqual(await ended(exec), { state: 'exited', exit_code: null, signal: 15, timed_out: false });
    const left = await guestExec(agent, { path: '/bin/sh', args: ['-c', 'pgrep -x sleep || true'] });
    assert.equal(left.stdout.toString(), '');
  });

  test('at its timeout the process group is killed', async () => {
    const exec = await sh('trap "" TERM; sleep 1000 & sleep 1000', { timeout_ms: 300 });
    assert.deepEqual(await ended(exec), { state: 'exited', exit_code: null, signal: 9, timed_out: true });
  });

  test('it ends with its first process, and a child that holds the pipe runs on', async () => {
    const line = '(sleep 1; echo more; echo more > /tmp/child-went-on) & echo first';
    const exec = await sh(line);
    assert.deepEqual(await ended(exec), exited(0));
    assert.equal(outputOf(exec), 'first\n');
    const went_on = async () =>
      (await guestExec(agent, { path: '/bin/cat', args: ['/tmp/child-went-on'] })).exit_code === 0;
    await until('the child has gone on', went_on, { timeout_ms: 20_000, every_ms: 100 });
  });

  test('input arrives in order, whole and binary, and then its end', async () => {
    const data = Buffer.from(Array.from({ length: 700_000 }, (_, index) => (index * 7) % 256));
    const exec = await started(['md5sum'], { stdin: true });
    assert.equal(await exec.write(send(exec), data.subarray(0, 400_000), false, never), true);
    assert.equal(await exec.write(send(exec), data.subarray(400_000), true, never), true);
    assert.deepEqual(await ended(exec), exited(0));
    const { createHash } = await import('node:crypto');
    assert.equal(outputOf(exec).slice(0, 32), createHash('md5').update(data).digest('hex'));
    assert.equal(await exec.write(send(exec), data, false, never), false);
  });

  test('a terminal has a size, is resized, and passes control characters', async () => {
    const exec = await sh('trap "stty size" WINCH; stty size; while :; do sleep 0.05; done', {
      tty: { columns: 80, rows: 24 },
    });
    const shows = (text: string) =>
      until(text, async () => outputOf(exec).includes(text), { timeout_ms: 20_000, every_ms: 10 });
    await shows('24 80\r\n');
    send(exec)(TO_GUEST.resize, Buffer.of(0, 100, 0, 30));
    await shows('30 100\r\n');
    await exec.write(send(exec), Buffer.from('\x03'), false, never);
    const { signal } = await ended(exec);
    assert.equal(signal, 2);
  });

  test('32 run at once', async () => {
    const all = await Promise.all(Array.from({ length: 32 }, (_, index) => sh(`sleep 0.5; exit ${index}`)));
    const codes = await Promise.all(all.map(async (each) => (await ended(each)).exit_code));
    assert.deepEqual(
      codes,
      Array.from({ length: 32 }, (_, index) => index),
    );
  });

  test('while no agent is there an exec runs on; the next agent has its output and its end', async () => {
    const exec = await sh('echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; seq 1 400000; exit 9');
    const waiting = await sh('while :; do sleep 0.05; done');
    await until('its output is here', async () => exec.output.end > 0, { timeout_ms: 10_000, every_ms: 5 });
    execs.close();
    const line = 'touch /tmp/go; while pgrep -x seq; do sleep 0.05; done';
    await guestExec(agent, { path: '/bin/sh', args: ['-c', line] });
    takeOver();
    const again = found(exec.id);
    assert.deepEqual(await ended(again), exited(9));
    const numbers = Array.from({ length: 400_000 }, (_, index) => `${index + 1}\n`).join('');
    assert.ok(outputOf(again) === `before\n${numbers}`, 'all of the output, once');
    assert.equal(found(waiting.id).end, null);
    await until('it is here', async () => execs.connected, { timeout_ms: 10_000, every_ms: 5 });
    send(found(waiting.id))(TO_GUEST.signal, Buffer.of(9));
    assert.equal((await ended(found(waiting.id))).signal, 9);
  });

  test('the last 8 MiB of the output are kept, from a later first offset', async () => {
    const exec = await sh('head -c 20000000 /dev/zero | tr "\\0" "a"; echo end');
    await ended(exec);
    assert.equal(exec.output.end, 20_000_004);
    assert.ok(exec.output.kept_bytes >= 8 * 1024 * 1024 && exec.output.kept_bytes <= 10 * 1024 * 1024);
    assert.ok(outputOf(exec).endsWith('aaaend\n'));
  });

  /** Both ends of a connection. */
  async function line(): Promise<[Duplex, Socket]> {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as { port: number };
    const near = new Promise<Duplex>((resolve) => server.once('connection', resolve));
    const far = connect(port, '127.0.0.1');
    const pair: [Duplex, Socket] = [await near, far];
    server.close();
    return pair;
  }

  test('an attached reader holds up the exec, and gets every byte; it sends input and signals', async () => {
    const exec = await sh('head -c 30000000 /dev/zero; read word; echo "$word"; sleep 1000', { stdin: true });
    const [stream, far] = await line();
    const reading = {
      instance_id,
      exec,
      send: send(exec),
      offset: 0,
      follow: true,
      attached: true,
      input: true,
    };
    const served = serveReader(stream, reading);
    await until('it waits', async () => exec.output.end > 2 * 1024 * 1024, {
      timeout_ms: 30_000,
      every_ms: 5,
    });
    assert.ok(exec.output.end < 20_000_000, 'the exec waits for its reader');
    const frames = new StreamFrames();
    let [next, text, exit] = [0, '', ''];
    far.on('data', (chunk: Buffer) => {
      for (const { type, payload } of frames.push(chunk)) {
        if (type === FRAME.exit) exit = payload.toString();
        if (type !== FRAME.stdout) continue;
        const { offset, rest } = readOffset(payload);
        assert.equal(offset, next);
        next += rest.length;
        if (next > 30_000_000) text += rest.subarray(Math.max(0, rest.length - (next - 30_000_000)));
      }
    });
    await until('all is here', async () => next >= 30_000_000, { timeout_ms: 60_000, every_ms: 5 });
    far.write(streamFrame(FRAME.input, Buffer.from('hello\n')));
    await until('its answer', async () => text === 'hello\n', { timeout_ms: 10_000, every_ms: 5 });
    far.write(streamFrame(FRAME.signal, Buffer.of(15)));
    await served;
    await until('the exit', async () => exit !== '', { timeout_ms: 10_000, every_ms: 5 });
    assert.deepEqual(JSON.parse(exit).end.signal, 15);
  });

  /** An attached reader, and the frames that it gets. */
  async function readBy(
    exec: HostExec,
    offset: number,
  ): Promise<{ stream: Duplex; far: Socket; frames: StreamFrames }> {
    const [stream, far] = await line();
    far.on('error', () => undefined);
    void serveReader(stream, {
      ...{ instance_id, exec, send: send(exec), offset },
      ...{ follow: true, attached: true, input: true },
    });
    return { stream, far, frames: new StreamFrames() };
  }

  /** Prints 30 MB, and says in the guest how many it has printed. */
  const PRINTS = 'for i in $(seq 30); do head -c 1000000 /dev/zero; echo $i > /tmp/printed; done';
  async function printed(): Promise<number> {
    const { stdout } = await guestExec(agent, { path: '/bin/cat', args: ['/tmp/printed'] });
    return Number(stdout.toString());
  }
  /** How much it has printed once it no longer goes on. */
  async function stuckAt(): Promise<number> {
    let [last, times] = [0, 0];
    const isStuck = async () => {
      const now = await printed();
      times = now === last ? times + 1 : 0;
      last = now;
      return times === 8;
    };
    await until('it waits', isStuck, { timeout_ms: 60_000, every_ms: 250 });
    return last;
  }

  test('an exec whose reader was lost with its agent waits; the next reader gets every byte, also of more than is kept', async () => {
    const exec = await sh(PRINTS);
    const first = await readBy(exec, 0);
    let reached = 0;
    first.far.on('data', (chunk: Buffer) => {
      for (const { type, payload } of first.frames.push(chunk))
        if (type === FRAME.stdout) reached += readOffset(payload).rest.length;
      if (reached > 2_000_000) first.far.pause();
    });
    await until('it has read some', () => reached > 2_000_000, { timeout_ms: 30_000, every_ms: 5 });
    execs.close();
    first.stream.destroy();
    const waits_at = await stuckAt();
    assert.ok(waits_at < 25, `it waits, and has printed ${waits_at} MB`);
    takeOver();
    await until('it is here', () => execs.connected, { timeout_ms: 10_000, every_ms: 5 });
    const second = await readBy(found(exec.id), reached);
    let exit = '';
    second.far.on('data', (chunk: Buffer) => {
      for (const { type, payload } of second.frames.push(chunk)) {
        if (type === FRAME.exit) exit = payload.toString();
        if (type !== FRAME.stdout) continue;
        const { offset, rest } = readOffset(payload);
        assert.equal(offset, reached, 'no byte is left out');
        reached += rest.length;
      }
    });
    await until('the exit', () => exit !== '', { timeout_ms: 60_000, every_ms: 5 });
    assert.equal(reached, 30_000_000);
  });

  test(
    'an exec waits a minute for a reader that was lost with its agent, and then goes on',
    THOROUGH,
    async () => {
      const exec = await sh(PRINTS);
      const { stream, far } = await readBy(exec, 0);
      await until('it waits', () => exec.output.end > 1024 * 1024, { timeout_ms: 30_000, every_ms: 5 });
      execs.close();
      stream.destroy();
      far.destroy();
      assert.ok((await stuckAt()) < 25);
      await until('it has printed all', async () => (await printed()) === 30, {
        timeout_ms: 120_000,
        every_ms: 500,
      });
      takeOver();
      const again = found(exec.id);
      assert.deepEqual(await ended(again), exited(0));
      assert.equal(again.output.end, 30_000_000);
      assert.ok(again.output.start > 10_000_000, 'the oldest bytes have gone');
    },
  );

  test('a reader that does not follow gets what there was when it came, although more comes all the time', async () => {
    const exec = await sh('yes');
    await until('it prints', async () => exec.output.end > 100_000, { timeout_ms: 30_000, every_ms: 5 });
    const [stream, far] = await line();
    far.resume();
    const reading = {
      instance_id,
      exec,
      send: send(exec),
      offset: 0,
      follow: false,
      attached: false,
      input: false,
    };
    let over = false;
    void serveReader(stream, reading).then(() => {
      over = true;
    });
    await until('it ends', async () => over, { timeout_ms: 30_000, every_ms: 20 });
    assert.equal(exec.end, null);
    send(exec)(TO_GUEST.signal, Buffer.of(9));
    await ended(exec);
  });

  test('after a signal to all processes an exec is lost with its supervisor, not with its boot, and the next one runs', async () => {
    const exec = await sh('kill -9 -1; sleep 1000');
    await until('it has a new supervisor', async () => exec.end !== null, {
      timeout_ms: 120_000,
      every_ms: 50,
    });
    assert.partialDeepStrictEqual(exec.end, { state: 'lost', lost_with: 'supervisor' });
    execs.close();
    takeOver();
    assert.deepEqual(await ended(await sh('exit 3')), exited(3));
  });

  test('a reset of the machine loses what runs, and keeps what has ended', async () => {
    const over = await sh('echo kept; exit 4');
    await ended(over);
    const exec = await sh('echo running; sleep 1000');
    await until('its output is here', async () => exec.output.end > 0, { timeout_ms: 10_000, every_ms: 5 });
    machine.resets += 1;
    await until('it is lost', async () => exec.end?.state === 'lost', { timeout_ms: 10_000, every_ms: 5 });
    assert.equal(exec.end?.lost_with, 'boot');
    assert.deepEqual([outputOf(exec), outputOf(over)], ['running\n', 'kept\n']);
    assert.deepEqual(await ended(over), exited(4));
  });
});
