/**
 * Measures the disk of a guest with fio: random requests of 4 KiB and sequential requests of 1 MiB. Berth's disk is a
 * qcow2 overlay with a dirty bitmap over the shared image. Compared with the same guest in a bare QEMU with a raw file.
 * Both guests run, and are measured in turn.
 */
import { join } from 'node:path';
import { bakeKey, startBare } from './bare-machine.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { bringFio, type FioJob, fio, type InGuest, NO_FIO, packFio } from './fio.ts';
import { makeKey, type SshKey, type SshTarget, ssh, untilBanner } from './ssh.ts';

const SECONDS = 5;
const ABOUT_FILE = { file: '/root/fio-data', file_mib: 256, seconds: SECONDS };
const JOBS: readonly (FioJob & { readonly figure: string })[] = [
  { figure: 'read_4_kib', rw: 'randread', block_bytes: 4_096, depth: 16, ...ABOUT_FILE },
  { figure: 'write_4_kib', rw: 'randwrite', block_bytes: 4_096, depth: 16, ...ABOUT_FILE },
  { figure: 'read_1_mib', rw: 'read', block_bytes: 2 ** 20, depth: 4, ...ABOUT_FILE },
  { figure: 'write_1_mib', rw: 'write', block_bytes: 2 ** 20, depth: 4, ...ABOUT_FILE },
];

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, image_dir, signal, runs, say } = context;
  const { api } = installation;
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-guest-io', key.public_key);
  const packed = await packFio(scratch_dir);
  if (!packed) {
    say(`left out: ${NO_FIO}`);
    return [];
  }
  const image = await bakeKey(join(scratch_dir, 'bare'), image_dir, key.public_key);
  const bare = await startBare(image, installation.accel, { raw: true });
  try {
    const { id } = await api.createInstance('guest-io');
    await api.startVm(id);
    await api.untilRunning(id);
    await bare.untilUp(signal);
    const machines = [
      { name: 'ours', guest: await ready(await api.ssh(id), key, packed, signal) },
      { name: 'raw file', guest: await ready(bare.target, key, packed, signal) },
    ];
    // Warms up: the bitmap is in use, and no figure includes the first allocation of a cluster.
    await api.flush(id);
    const figures: Measured[] = [];
    for (const { figure, ...job } of JOBS) {
      const values: [number[], number[]] = [[], []];
      for (let round = 0; round <= runs; round++) {
        const told: string[] = [];
        for (const [i, { name, guest }] of machines.entries()) {
          const { iops, mib_per_second } = await fio(guest, job);
          const value = job.block_bytes === 4_096 ? iops : mib_per_second;
          told.push(`${name} ${value.toFixed(0)}`);
          if (round > 0) values[i]?.push(value);
        }
        say(`${figure}, round ${round}${round === 0 ? ' (not counted)' : ''}: ${told.join(', ')}`);
      }
      figures.push(
        measured({
          ...{ bench: 'guest-io', figure, unit: job.block_bytes === 4_096 ? '/s' : 'MiB/s' },
          ...{ values: values[0], beside: 'a raw file', beside_values: values[1] },
          remark: `depth ${job.depth}; aim: at least 0.95`,
        }),
      );
    }
    await api.deleteInstance(id);
    return figures;
  } finally {
    await bare.end();
  }
}

async function ready(
  target: SshTarget,
  key: SshKey,
  packed: Uint8Array,
  signal: AbortSignal,
): Promise<InGuest> {
  await untilBanner(target, signal);
  const guest: InGuest = (command, input) =>
    ssh(target, command, { key, signal, ...(input === undefined ? {} : { input }) });
  await bringFio(guest, packed);
  await guest(
    `dd if=/dev/urandom of=${ABOUT_FILE.file} bs=1M count=${ABOUT_FILE.file_mib} status=none; sync`,
  );
  return guest;
}

export const guestIoBench: Bench = {
  name: 'guest-io',
  summary: 'fio in the guest, 4 KiB at random and 1 MiB in order, beside a bare QEMU on a raw file',
  run,
};
