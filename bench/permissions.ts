/**
 * Measures what it costs that hosts have no credentials for the bucket. A host on another machine flushes 512 MiB of
 * noise, from the writes of QEMU's backup job to durable segments, without a guest. The host asks a control plane, over
 * TLS, to sign each of its requests to the bucket. The control plane is a process of its own with its database.
 * Compared with the same flush with the bucket's credentials. Both use the same S3 server (Ceph's gateway).
 */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CompressPool } from '../src/disk-format/compress-pool.ts';
import { newDataKey } from '../src/disk-format/frame-cipher.ts';
import { FlushSink } from '../src/host/disk/flush-sink.ts';
import { permittedStore } from '../src/host/host-store.ts';
import { freeLoopbackPort } from '../src/host/qemu/qemu-process.ts';
import type { ObjectStore } from '../src/object-store/object-store.ts';
import { S3Store } from '../src/object-store/s3-store.ts';
import type { ControlPlaneClient } from '../src/protocol/client.ts';
import type { InstanceId } from '../src/shared/ids.ts';
import { createLog } from '../src/shared/log.ts';
import { joinWith } from '../test/support/remote-hosts.ts';
import { bucketSettings, S3Server } from '../test/support/s3-server.ts';
import { FACTS, ScriptedAgent } from '../test/support/scripted-agent.ts';
import { type HostBench, type HostContext, type Measured, measured } from './figure.ts';
import { Installation } from './installation.ts';
import { cpuSeconds } from './process-cost.ts';

const PROJECT_DIR = join(import.meta.dirname, '..');
const MIB = 2 ** 20;
const FLUSH_MIB = 512;
const WARM_UP_TIMES = 30;
const SIDES = ['permitted', 'direct'] as const;

interface Scene extends AsyncDisposable {
  readonly stores: Readonly<Record<(typeof SIDES)[number], ObjectStore>>;
  readonly owner: S3Store;
  readonly ask: ControlPlaneClient['objectPermissions'];
  readonly instance_id: InstanceId;
  readonly epoch: number;
  readonly control_plane_pid: number;
}

/** A host of a fleet that runs an instance: the scripted one of the tests, because this process is the one that flushes. */
async function setUp({ scratch_dir, signal }: HostContext): Promise<Scene> {
  await using cleanup = new AsyncDisposableStack();
  const server = await S3Server.start();
  cleanup.defer(() => server.close());
  const bucket = await server.bucket();
  const dir = join(scratch_dir, 'fleet');
  await mkdir(dir, { mode: 0o711 });
  const data_dir = join(dir, 'data');
  const listen = `127.0.0.1:${await freeLoopbackPort()}`;
  const settings = {
    ...{ ...bucketSettings(bucket), BERTH_HOSTS_LISTEN: listen, BERTH_SSH_PORTS: '24000-24999' },
    BERTH_FAST_START: 'off',
  };
  const about = { project_dir: PROJECT_DIR, data_dir, log_path: join(dir, 'log'), accel: 'tcg' };
  const installation = await Installation.start({ ...about, signal, settings });
  cleanup.defer(() => installation.end());
  const berth = async (...args: string[]) => {
    const env = { PATH: '/usr/bin:/bin:/usr/sbin:/sbin', ...settings, BERTH_DATA_DIR: data_dir };
    return (await promisify(execFile)(join(PROJECT_DIR, 'bin', 'berth'), args, { env, signal })).stdout;
  };
  const added = await berth('host', 'add', 'far', '--cpus', '64', '--memory', '512');
  const { token, fingerprint } = await joinWith(`https://${listen}`, added.trim());
  const agent = new ScriptedAgent(`https://${listen}`, token, fingerprint);
  cleanup.defer(() => agent.close());
  await agent.connect(FACTS);
  await berth('host', 'drain', 'local');
  const instance_id = (await installation.api.createInstance('permissions')).id as InstanceId;
  await installation.api.startVm(instance_id);
  const { epoch } = await agent.assigned(instance_id);
  await agent.ready(instance_id);
  const [direct, permitted] = [
    new S3Store(bucket),
    permittedStore(agent.client, createLog('bench', 'silent')),
  ];
  cleanup.defer(() => direct.close());
  cleanup.defer(() => permitted.close());
  const control_plane_pid = installation.pidOf('control-plane');
  const all = cleanup.move();
  const stores = { direct, permitted };
  return {
    stores,
    owner: direct,
    ask: (body) => agent.client.objectPermissions(body),
    instance_id,
    epoch,
    control_plane_pid,
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

/** Milliseconds from the first write until every segment is durable. */
async function flush(
  store: ObjectStore,
  pool: CompressPool,
  { instance_id, epoch }: Scene,
  data: Buffer,
): Promise<number> {
  const about = { disk_id: instance_id, epoch, generation: 1, key_prefix: `disks/${instance_id}` };
  const size_bytes = FLUSH_MIB * MIB;
  const began_ms = performance.now();
  const sink = new FlushSink({ store, pool, ...about, size_bytes, head: undefined, data_key: newDataKey() });
  for (let at = 0; at < size_bytes; at += MIB)
    await sink.write(at, data.subarray(at % data.length, (at % data.length) + MIB));
  await sink.finish();
  return performance.now() - began_ms;
}

/** A control plane runs for months: its code is compiled before the first round. */
async function warmUp(scene: Scene, pool: CompressPool, data: Buffer): Promise<void> {
  await flush(scene.stores.permitted, pool, scene, data);
  const keys: string[] = [];
  for await (const { key } of scene.owner.list('disks/')) {
    keys.push(key);
    await scene.owner.delete(key);
  }
  const about = { method: 'PUT', size_bytes: MIB, sha256: '0'.repeat(64) } as const;
  for (let times = 0; times < WARM_UP_TIMES; times++) {
    for (const key of keys) await scene.ask({ objects: [{ ...about, key }] });
  }
}

/** Of this process and of the control plane, but not of the store. */
function processorSeconds({ control_plane_pid }: Scene): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6 + cpuSeconds(control_plane_pid);
}

async function all(context: HostContext): Promise<readonly Measured[]> {
  const { runs, signal, say } = context;
  await using scene = await setUp(context);
  const pool = new CompressPool();
  const data = randomBytes(64 * MIB);
  await warmUp(scene, pool, data);
  const times: Record<(typeof SIDES)[number], number[]> = { permitted: [], direct: [] };
  const processor: Record<(typeof SIDES)[number], number[]> = { permitted: [], direct: [] };
  try {
    for (let number = 0; number <= runs; number++) {
      // In turn first and second.
      for (const side of number % 2 === 0 ? SIDES : SIDES.toReversed()) {
        signal.throwIfAborted();
        const before_s = processorSeconds(scene);
        const took_ms = await flush(scene.stores[side], pool, scene, data);
        const took_s = processorSeconds(scene) - before_s;
        say(`round ${number}, ${side}: ${Math.round(took_ms)} ms, ${took_s.toFixed(2)} s of the processor`);
        if (number > 0) times[side].push(took_ms);
        if (number > 0) processor[side].push(took_s);
        for await (const { key } of scene.owner.list('disks/')) await scene.owner.delete(key);
      }
    }
  } finally {
    await pool.close();
  }
  return [
    measured({
      ...{ bench: 'permissions', figure: 'flush_512_mib', unit: 'ms', values: times.permitted },
      ...{ beside: 'the same with the credentials of the bucket', beside_values: times.direct },
      remark: '',
    }),
    measured({
      ...{ bench: 'permissions', figure: 'core_seconds_512_mib', unit: 's', values: processor.permitted },
      ...{ beside: 'the same with the credentials of the bucket', beside_values: processor.direct },
      remark: '',
    }),
  ];
}

export const permissionsBench: HostBench = {
  alone: true,
  name: 'permissions',
  summary: 'a flush of 512 MiB on a host whose requests the control plane signs, beside one with credentials',
  run: all,
};
