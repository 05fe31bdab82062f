/**
 * Measures the files API with a file of 128 MiB into a guest and out of it, compared with `scp` of the same file in the
 * same guest; and with a small file. A write by the API is on the guest's disk when it is answered. scp leaves that to
 * the guest's kernel, so its copy is followed by `sync`.
 */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { makeKey, SSH_SETTINGS, type SshKey, type SshTarget, ssh } from './ssh.ts';

const run = promisify(execFile);
const MIB = 128;
const SMALL_BYTES = 1_024;

export const filesBench: Bench = {
  name: 'files',
  summary: 'a file into a guest and out of it, beside scp',
  run: measure,
};

interface Sides {
  readonly url: string;
  readonly authorization: string;
  readonly target: SshTarget;
  readonly key: SshKey;
  readonly signal: AbortSignal;
}

async function measure(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, runs, signal, say } = context;
  const key = await makeKey(scratch_dir);
  const { api } = installation;
  await api.addKey('bench-files', key.public_key);
  const { id } = await api.createInstance('bench-files');
  await api.startVm(id);
  await api.untilRunning(id);
  const target = await api.ssh(id);
  const url = `${api.url}/v1/instances/${id}/files?path=`;
  const sides = { url, authorization: api.authorization['authorization'] ?? '', target, key, signal };
  const big = join(scratch_dir, 'big');
  const small = join(scratch_dir, 'small');
  await writeFile(big, randomBytes(MIB * 2 ** 20));
  await writeFile(small, randomBytes(SMALL_BYTES));
  const all: Measured[] = [];
  for (const [figure, file, write] of [
    ['written_mib_per_second', big, true],
    ['read_mib_per_second', big, false],
    ['small_written_per_second', small, true],
    ['small_read_per_second', small, false],
  ] as const) {
    const ours: number[] = [];
    const theirs: number[] = [];
    for (let round = 0; round <= runs; round++) {
      const one = file === big ? MIB : 1;
      const mine = one / (await seconds(() => byApi(sides, file, write)));
      const others = one / (await seconds(() => byScp(sides, file, write)));
      say(`round ${round}: ${figure}: Berth ${mine.toFixed(2)}, scp ${others.toFixed(2)}`);
      if (round === 0) continue;
      ours.push(mine);
      theirs.push(others);
    }
    const unit = file === big ? 'MiB/s' : '/s';
    const remark = file === big ? `${MIB} MiB of noise` : 'a new connection each';
    all.push(
      measured({ bench: 'files', figure, unit, values: ours, beside: 'scp', beside_values: theirs, remark }),
    );
  }
  return all;
}

async function seconds(work: () => Promise<void>): Promise<number> {
  const began = performance.now();
  await work();
  return (performance.now() - began) / 1_000;
}

/** The same program for both directions, and a new process each time, as scp is. */
async function byApi({ url, authorization, signal }: Sides, file: string, write: boolean): Promise<void> {
  const where = [`${url}/root/api-${file.endsWith('big') ? 'big' : 'small'}`];
  const how = write ? ['-T', file, '-o', '/dev/null'] : ['-o', `${file}.out`];
  await run('curl', ['-sSf', '-H', `Authorization: ${authorization}`, '-H', 'Expect:', ...how, ...where], {
    signal,
  });
}

async function byScp({ target, key, signal }: Sides, file: string, write: boolean): Promise<void> {
  const there = `root@${target.host}:/root/scp-${file.endsWith('big') ? 'big' : 'small'}`;
  const options = ['-F', 'none', '-q', ...SSH_SETTINGS.flatMap((each) => ['-o', each])];
  const way = write ? [file, there] : [there, `${file}.out`];
  await run('scp', [...options, '-P', String(target.port), '-i', key.private_path, ...way], { signal });
  if (write && file.endsWith('big')) await ssh(target, 'sync', { key, signal });
}
