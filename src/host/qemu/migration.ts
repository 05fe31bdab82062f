/**
 * Uses QEMU's migration within a host: saves a machine's memory as a stream, and loads a stream into another machine
 * over a Unix socket, or from a file. Also tells which properties two machines must share for that.
 */

import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, chown, rm } from 'node:fs/promises';
import { connect, createServer, type Socket } from 'node:net';
import { cpus } from 'node:os';
import { addAbortSignal, Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import type { MachineTraits } from '../../protocol/types.ts';
import { pause } from '../../shared/retry.ts';
import { type Accelerator, qemuArguments, type VmNetworkSpec } from './qemu-command.ts';
import { logTail, MEMORY_FD } from './qemu-process.ts';
import type { QmpClient, QmpEvent } from './qmp-client.ts';

/** Bytes per second: the reader sets the pace. */
const UNLIMITED = 2 ** 60;
const FOREVER_MS = 2 ** 31 - 1;
/** Space in the stream for devices and marks of zero pages, besides the memory. */
const MORE_MIB = 256;

/** QEMU has read the stream, and cannot load it: another try would end the same. */
export class StreamRefusedError extends Error {
  override name = 'StreamRefusedError';
}

/** An upper limit of the stream of a machine of that size. */
export function maxStreamBytes(memory_mib: number): number {
  return (memory_mib + MORE_MIB) * 2 ** 20;
}

interface Outlet {
  readonly path: string;
  /** QEMU's user, which must have access to the socket. */
  readonly owner: { readonly uid: number; readonly gid: number } | null;
  readonly signal: AbortSignal;
}

/** Streams a stopped machine's memory to `take`. It is complete only if `whole`. */
export async function saveStream<T>(
  qmp: QmpClient,
  { path, owner, signal }: Outlet,
  take: (stream: AsyncIterable<Buffer>) => Promise<T>,
): Promise<{ readonly taken: T; readonly whole: boolean }> {
  await tellOfMigration(qmp);
  await qmp.execute('migrate-set-parameters', { 'max-bandwidth': UNLIMITED });
  const inlet = await openInlet(path, owner);
  const ended = qmp.waitForEvent(isMigrationEnd, { timeout_ms: FOREVER_MS, signal });
  ended.catch(() => undefined);
  try {
    await qmp.execute('migrate', { uri: `unix:${path}` });
    const stream = await Promise.race([inlet.connected, ended.then(() => null)]);
    if (!stream) throw new Error('QEMU did not send its memory');
    const taken = await take(addAbortSignal(signal, stream));
    return { taken, whole: (await ended.catch(() => null))?.data.status === 'completed' };
  } finally {
    await inlet.close();
  }
}

interface Inlet {
  /** The path given to QEMU's `-incoming`. */
  readonly path: string;
  readonly qemu_log: string;
  readonly timeout_ms: number;
  readonly signal: AbortSignal;
}

/** Loads a stream into a QEMU that waits for it. The guest stays paused. @throws errors of the stream; why QEMU refuses it */
export async function loadStream(
  qmp: QmpClient,
  { path, qemu_log, timeout_ms, signal }: Inlet,
  stream: (signal: AbortSignal) => AsyncIterable<Buffer>,
): Promise<void> {
  await tellOfMigration(qmp);
  const within = AbortSignal.any([signal, AbortSignal.timeout(timeout_ms)]);
  const ended = qmp.waitForEvent(isMigrationEnd, { timeout_ms, signal });
  ended.catch(() => undefined);
  let unreadable: unknown;
  const read = async function* () {
    try {
      yield* stream(within);
    } catch (error) {
      unreadable = error;
      throw error;
    }
  };
  try {
    await pipeline(Readable.from(read(), { objectMode: false, highWaterMark: 1 }), connect(path), {
      signal: within,
    });
    await untilLoaded(qmp, ended);
  } catch (error) {
    if (unreadable) throw unreadable;
    signal.throwIfAborted();
    throw notTaken(qemu_log, error);
  }
}

/** Makes QEMU load the file passed as {@link MEMORY_FD}. The guest stays paused. @throws why QEMU refuses it */
export async function loadFile(
  qmp: QmpClient,
  { qemu_log, timeout_ms, signal }: Omit<Inlet, 'path'>,
): Promise<void> {
  await tellOfMigration(qmp);
  const ended = qmp.waitForEvent(isMigrationEnd, { timeout_ms, signal });
  ended.catch(() => undefined);
  try {
    // While it reads, it replies to nothing.
    await qmp.execute('migrate-incoming', { uri: `fd:${MEMORY_FD}` }, { timeout_ms });
    await untilLoaded(qmp, ended);
  } catch (error) {
    signal.throwIfAborted();
    throw notTaken(qemu_log, error);
  }
}

async function untilLoaded(qmp: QmpClient, ended: Promise<MigrationEvent>): Promise<void> {
  const { data } = await ended;
  const { status } = await qmp.execute('query-status', undefined);
  if (data.status !== 'completed' || status !== 'paused') throw new Error(`its migration ${data.status}`);
}

/** A QEMU that was killed, as for want of memory, says nothing of the stream. */
const REFUSAL = /load of migration failed|error while loading state|Unknown savevm|Length mismatch/i;

function notTaken(qemu_log: string, cause: unknown): Error {
  const said = logTail(qemu_log).join(' | ');
  if (REFUSAL.test(said)) return new StreamRefusedError(`QEMU refuses the memory: ${said}`, { cause });
  return new Error(`QEMU did not load the memory: ${said}`.trim(), { cause });
}

/** Enables QEMU's migration events. */
async function tellOfMigration(qmp: QmpClient): Promise<void> {
  await qmp.execute('migrate-set-capabilities', { capabilities: [{ capability: 'events', state: true }] });
}

type MigrationEvent = Extract<QmpEvent, { event: 'MIGRATION' }>;

function isMigrationEnd(event: QmpEvent): event is MigrationEvent {
  return event.event === 'MIGRATION' && ['completed', 'failed', 'cancelled'].includes(event.data.status);
}

/** A socket that accepts one connection, from QEMU. */
async function openInlet(path: string, owner: Outlet['owner']) {
  const connected = Promise.withResolvers<Socket>();
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.on('error', () => socket.destroy());
    connected.resolve(socket);
  });
  server.maxConnections = 1;
  await rm(path, { force: true });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, resolve);
  });
  try {
    if (owner) await chown(path, owner.uid, owner.gid);
    await chmod(path, 0o600);
  } catch (error) {
    server.close();
    throw error;
  }
  return {
    connected: connected.promise,
    close: async () => {
      const closed = new Promise((resolve) => server.close(resolve));
      void connected.promise.then((socket) => socket.destroy());
      await Promise.race([closed, pause(1_000)]);
    },
  };
}

const run = promisify(execFile);
const VERSION_MS = 10_000;

export interface MachineSize {
  readonly cpus: number;
  readonly memory_mib: number;
  readonly accel: Accelerator;
  readonly image_version: string;
  /** A network card with a TAP device saves other memory than one in QEMU's user network. */
  readonly network: Exclude<VmNetworkSpec['kind'], 'none'>;
}

/**
 * The properties that two machines must share for one to resume from the other's memory.
 * All except QEMU's version, which a running QEMU reports.
 */
export function hardwareTraits(size: MachineSize): Omit<MachineTraits, 'qemu'> {
  return {
    hardware: createHash('sha256')
      .update(JSON.stringify(hardwareArguments(size)))
      .digest('hex'),
    image_version: size.image_version,
    // A KVM guest sees the host's CPU and has chosen code for it.
    host_cpu: size.accel === 'kvm' ? (cpus()[0]?.model ?? '') : '',
  };
}

export async function qemuVersion(qmp: QmpClient): Promise<string> {
  const { qemu, package: build } = await qmp.execute('query-version', undefined);
  return `${qemu.major}.${qemu.minor}.${qemu.micro} ${build}`.trim();
}

/**
 * What hosts share that can resume each other's VMs, as a hash: QEMU, accelerator, kind of network and, under KVM, the CPU. A
 * hint for placements; before memory is loaded, its own traits are compared. Null: QEMU does not say its version.
 */
export async function machineHash(
  qemu_binary: string,
  { accel, network }: Pick<MachineSize, 'accel' | 'network'>,
): Promise<string | null> {
  const { stdout } = await run(qemu_binary, ['--version'], { timeout: VERSION_MS }).catch(() => ({
    stdout: '',
  }));
  const version = stdout.split('\n')[0] ?? '';
  if (version === '') return null;
  const traits = hardwareTraits({ cpus: 1, memory_mib: 512, accel, network, image_version: '' });
  return createHash('sha256')
    .update(JSON.stringify([version, traits.hardware, traits.host_cpu]))
    .digest('hex');
}

/** The difference, for people; null: none. */
export function differenceOf(saved: MachineTraits, now: Partial<MachineTraits>): string | null {
  const names: Record<keyof MachineTraits, string> = {
    qemu: 'QEMU is another',
    hardware: 'the virtual hardware is another',
    image_version: 'the image is another',
    host_cpu: 'the CPU of the host is another',
  };
  for (const [trait, text] of Object.entries(names)) {
    const value = now[trait as keyof MachineTraits];
    if (value !== undefined && value !== saved[trait as keyof MachineTraits]) return text;
  }
  return null;
}

/** The hardware arguments, which are the same for every VM of that size. */
function hardwareArguments({ cpus: count, memory_mib, accel, network }: MachineSize): string[] {
  const nobody = '0'.repeat(26);
  return qemuArguments({
    ...{
      instance_id: `inst_${nobody}`,
      vm_id: `vm_${nobody}`,
      hostname: 'none',
      cpus: count,
      memory_mib,
      accel,
    },
    ...{ kernel_path: '/kernel', initrd_path: '/initrd', overlay_path: '/overlay', base_path: '/base' },
    runtime_dir: '/run',
    network:
      network === 'tap' ? { kind: 'tap', fd: 0 } : { kind: 'user', ssh_forward_port: 1, restricted: false },
  });
}
