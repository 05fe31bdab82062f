/**
 * Measures the agent's peak memory, with a folder and with a bucket as object store, and compares it with the limit of
 * 200 MiB. The agent does two kinds of work:
 *
 * - It flushes 512 MiB of noise.
 * - It starts a VM on a host without data of the disk, while the guest reads all of the disk and the overlay is filled.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pathsIn } from '../src/config/paths.ts';
import { overlayPaths } from '../src/host/disk/overlay-files.ts';
import { allPids, commandLineOf } from '../src/host/qemu/qemu-process.ts';
import type { S3Settings } from '../src/object-store/s3-store.ts';
import { pause } from '../src/shared/retry.ts';
import { bucketSettings, S3Server } from '../test/support/s3-server.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { Installation } from './installation.ts';
import { makeKey, ssh } from './ssh.ts';

const PROJECT_DIR = join(import.meta.dirname, '..');
const DATA_MIB = 512;
const MOST_MIB = 200;
const WHOLE_MS = 600_000;

/** The pid of this installation's agent, whose environment names the folder. */
function agentPid(data_dir: string): number {
  const found = allPids().find((pid) => {
    if (commandLineOf(pid).at(-1) !== 'agent') return false;
    return readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0').includes(`BERTH_DATA_DIR=${data_dir}`);
  });
  if (found === undefined) throw new Error('the agent is not found');
  return found;
}

/** The peak since the last call, in MiB. */
function peak(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
  return Number(/^VmHWM:\s+([0-9]+) kB$/m.exec(status)?.[1]) / 1024;
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const to_folder = await peaks(context, context.installation, '');
  const server = await S3Server.start();
  try {
    return [...to_folder, ...(await peaksOnS3(context, await server.bucket()))];
  } finally {
    await server.close();
  }
}

async function peaksOnS3(context: BenchContext, bucket: S3Settings): Promise<readonly Measured[]> {
  const dir = join(context.scratch_dir, 's3');
  await mkdir(dir, { mode: 0o711 });
  const on_s3 = await Installation.start({
    ...{ project_dir: PROJECT_DIR, data_dir: join(dir, 'data'), log_path: join(dir, 'log') },
    ...{ accel: context.installation.accel, signal: context.signal },
    // Other ports than the other installation's.
    settings: { ...bucketSettings(bucket), BERTH_SSH_PORTS: '24000-24999' },
  });
  try {
    return await peaks(context, on_s3, '_s3');
  } finally {
    await on_s3.end();
  }
}

async function peaks(
  { scratch_dir, runs, signal, say }: BenchContext,
  { api, data_dir }: Installation,
  which: '' | '_s3',
): Promise<readonly Measured[]> {
  const pid = agentPid(data_dir);
  const key_dir = join(scratch_dir, `key${which}`);
  await mkdir(key_dir);
  const key = await makeKey(key_dir);
  await api.addKey('bench-memory', key.public_key);
  const { id } = await api.createInstance('memory');
  await api.startVm(id);
  await api.untilRunning(id);
  const guest = async (command: string) => ssh(await api.ssh(id), command, { key, signal });
  const { overlay, sidecar } = overlayPaths(pathsIn(data_dir).overlays, id);
  const flushes: number[] = [];
  const restores: number[] = [];
  await api.flush(id);
  for (let round = 1; round <= runs; round++) {
    const noise = `openssl enc -aes-128-ctr -K $(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n') -iv ${'0'.repeat(32)}`;
    await guest(`head -c ${DATA_MIB}M /dev/zero | ${noise} > /root/noise; sync`);
    peak(pid);
    await api.flush(id);
    flushes.push(peak(pid));
    await api.stopVm(id);
    await rm(sidecar);
    await rm(overlay);
    peak(pid);
    await api.startVm(id);
    await api.untilRunning(id);
    await guest('cat /root/noise > /dev/null');
    const until_ms = performance.now() + WHOLE_MS;
    while (!(JSON.parse(readFileSync(sidecar, 'utf8')) as { filled: boolean }).filled) {
      if (performance.now() > until_ms) throw new Error('the overlay does not become whole');
      if (!(await pause(200, signal))) signal.throwIfAborted();
    }
    restores.push(peak(pid));
    say(
      `round ${round}${which === '' ? '' : ' on S3'}: ${Math.round(flushes.at(-1) ?? 0)} MiB in the flush, ${Math.round(restores.at(-1) ?? 0)} MiB in the restore`,
    );
  }
  await api.deleteInstance(id);
  const figure = (name: string, values: number[]) =>
    measured({
      ...{ bench: 'memory', figure: name, unit: 'MiB', values, beside: 'the limit' },
      ...{ beside_values: values.map(() => MOST_MIB), remark: 'the peak, of the whole process' },
    });
  return [
    figure(`flush_${DATA_MIB}_mib${which}`, flushes),
    figure(`lazy_restore_${DATA_MIB}_mib${which}`, restores),
  ];
}

export const memoryBench: Bench = {
  name: 'memory',
  summary: `the most memory that the agent holds in a flush and a lazy restore of ${DATA_MIB} MiB`,
  run,
};
