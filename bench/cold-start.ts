/**
 * Measures a start on a host that has no data of the disk: from `POST …/vm` to the end of a first `ssh … true`. The
 * disk has 256 MiB of noise besides the guest's own writes. Compared with two others:
 *
 * - a start whose overlay is still on the host;
 * - a host that first fetches the whole disk (`berth disk export`, which reads and verifies every block as a restore
 *   does), and then starts with the overlay.
 *
 * After each cold start the benchmark waits until the overlay is complete. So no round's fetches overlap the next
 * round.
 */
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pathsIn } from '../src/config/paths.ts';
import { overlayPaths } from '../src/host/disk/overlay-files.ts';
import { pause } from '../src/shared/retry.ts';
import { type Bench, type BenchContext, type Measured, measured, median } from './figure.ts';
import { randomData } from './flush-data.ts';
import { makeKey, type SshKey, ssh, untilBanner } from './ssh.ts';

const WHOLE_MS = 300_000;

interface Cold {
  readonly login_s: number;
  /** From the same start to the complete overlay. */
  readonly whole_s: number;
  readonly fetched: { readonly requests: number; readonly bytes: number };
}

async function loginAfterStart(
  { installation, signal }: BenchContext,
  id: string,
  key: SshKey,
): Promise<number> {
  const { api } = installation;
  const started_ms = performance.now();
  await api.startVm(id);
  await api.untilRunning(id);
  const target = await api.ssh(id);
  await untilBanner(target, signal);
  await ssh(target, 'true', { key, signal });
  return (performance.now() - started_ms) / 1000;
}

async function coldStart(context: BenchContext, id: string, key: SshKey): Promise<Cold> {
  const { installation, signal } = context;
  const { overlay, sidecar } = overlayPaths(pathsIn(installation.data_dir).overlays, id);
  await rm(sidecar);
  await rm(overlay);
  const before = await wholes(installation.log_path);
  const started_ms = performance.now();
  const login_s = await loginAfterStart(context, id, key);
  for (;;) {
    const told = (await wholes(installation.log_path)).slice(before.length).at(-1);
    if (told) return { login_s, whole_s: (performance.now() - started_ms) / 1000, fetched: told };
    if (performance.now() - started_ms > WHOLE_MS) throw new Error('the overlay does not become whole');
    if (!(await pause(100, signal))) signal.throwIfAborted();
  }
}

/** Seconds. No VM runs meanwhile. */
async function download({ installation, scratch_dir }: BenchContext, id: string): Promise<number> {
  const file = join(scratch_dir, 'whole.raw');
  const started_ms = performance.now();
  await installation.berth('disk', 'export', id, file, '--format', 'raw');
  const took_s = (performance.now() - started_ms) / 1000;
  await rm(file);
  return took_s;
}

/** The agent's log lines about completed overlays. */
async function wholes(log_path: string): Promise<{ requests: number; bytes: number }[]> {
  const lines = (await readFile(log_path, 'utf8')).split('\n');
  return lines
    .filter((line) => line.includes('the overlay is whole'))
    .map((line) => (JSON.parse(line) as { fetched: { requests: number; bytes: number } }).fetched);
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, runs, signal, say } = context;
  const { api } = installation;
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-cold-start', key.public_key);
  const { id } = await api.createInstance('cold-start');
  await loginAfterStart(context, id, key);
  const data = randomData();
  await ssh(await api.ssh(id), `set -e; set -- /root/noise; ${data.command}; sync`, { key, signal });
  await api.flush(id);
  await api.stopVm(id);
  const warm: number[] = [];
  const full: number[] = [];
  const cold: Cold[] = [];
  for (let round = 0; round <= runs; round++) {
    const warm_s = await loginAfterStart(context, id, key);
    await api.stopVm(id);
    const download_s = await download(context, id);
    const now = await coldStart(context, id, key);
    await api.stopVm(id);
    say(
      `round ${round}${round === 0 ? ' (not counted)' : ''}: cold ${now.login_s.toFixed(2)} s, whole after ` +
        `${now.whole_s.toFixed(2)} s, ${now.fetched.requests} requests, ${mib(now.fetched.bytes)}; warm ${warm_s.toFixed(2)} s; whole disk fetched in ${download_s.toFixed(2)} s`,
    );
    if (round === 0) continue;
    warm.push(warm_s);
    full.push(download_s + warm_s);
    cold.push(now);
  }
  await api.deleteInstance(id);
  const lazy = cold.map(({ login_s }) => login_s);
  return [
    measured({
      ...{ bench: 'cold-start', figure: 'first_ssh_true_full_download', unit: 's', values: lazy },
      ...{ beside: 'whole disk fetched, then a warm start', beside_values: full, remark: '' },
    }),
    measured({
      bench: 'cold-start',
      figure: 'first_ssh_true',
      unit: 's',
      values: lazy,
      beside: 'warm start',
      beside_values: warm,
      remark:
        `whole after ${median(cold.map(({ whole_s }) => whole_s)).toFixed(1)} s, ` +
        `${median(cold.map(({ fetched }) => fetched.requests))} requests for ${mib(median(cold.map(({ fetched }) => fetched.bytes)))}`,
    }),
  ];
}

function mib(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

export const coldStartBench: Bench = {
  name: 'cold-start',
  summary:
    'POST …/vm to a finished first ssh on a host without the disk (256 MiB more), beside a warm start and a full download',
  run,
};
