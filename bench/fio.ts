/**
 * Runs fio in a guest. First fio of this host's Debian is copied into the guest, with its libraries and loader, so that
 * the guest needs no package.
 */
import { execFile } from 'node:child_process';
import { cp, mkdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const THERE = '/root/fio';

export type InGuest = (command: string, input?: Uint8Array) => Promise<string>;

export interface FioJob {
  readonly rw: 'randread' | 'randwrite' | 'read' | 'write';
  readonly block_bytes: number;
  readonly depth: number;
  readonly file: string;
  readonly file_mib: number;
  readonly seconds: number;
  /** The maximum number of requests a second. */
  readonly iops_max?: number;
}

export interface FioResult {
  readonly iops: number;
  readonly mib_per_second: number;
  /** The longest time from a request's submission to its completion. */
  readonly worst_ms: number;
}

export const NO_FIO = 'fio is not installed (apt-get install fio)';

/** fio with its libraries as one archive; null if it is not installed. */
export async function packFio(folder: string): Promise<Uint8Array | null> {
  const there = await run('sh', ['-c', 'fio=$(command -v fio) && echo "$fio" && ldd "$fio"']).catch(
    () => null,
  );
  if (!there) return null;
  const { stdout } = there;
  const [program = '', ...lines] = stdout.split('\n');
  const libraries = lines.flatMap((line) => /(\/\S+) \(0x/.exec(line)?.[1] ?? []);
  const into = join(folder, 'fio');
  await mkdir(into);
  for (const path of [program, ...libraries])
    await cp(path, join(into, basename(path)), { dereference: true });
  await run('tar', ['-C', folder, '-czf', join(folder, 'fio.tar.gz'), 'fio']);
  return readFile(join(folder, 'fio.tar.gz'));
}

export async function bringFio(guest: InGuest, packed: Uint8Array): Promise<void> {
  await guest('tar -C /root -xz', packed);
}

/** Bypasses the guest's page cache (`direct`). Its file is written once before. */
export async function fio(guest: InGuest, job: FioJob): Promise<FioResult> {
  const options = [
    ...['name=bench', 'ioengine=libaio', 'direct=1', 'time_based=1', 'randrepeat=0', 'refill_buffers=1'],
    ...[`filename=${job.file}`, `size=${job.file_mib}M`, `rw=${job.rw}`, `bs=${job.block_bytes}`],
    ...[`iodepth=${job.depth}`, `runtime=${job.seconds}`, 'output-format=json'],
    ...(job.iops_max === undefined ? [] : [`rate_iops=${job.iops_max}`]),
  ].map((option) => `--${option}`);
  const loader = `${THERE}/ld-linux-x86-64.so.2 --library-path ${THERE} ${THERE}/fio`;
  const told = await guest(`${loader} ${options.join(' ')}`);
  const { jobs } = JSON.parse(told.slice(told.indexOf('{'))) as {
    jobs: [Record<'read' | 'write', { iops: number; bw_bytes: number; lat_ns: { max: number } }>];
  };
  const { iops, bw_bytes, lat_ns } = jobs[0][job.rw.endsWith('read') ? 'read' : 'write'];
  return { iops, mib_per_second: bw_bytes / 2 ** 20, worst_ms: lat_ns.max / 1e6 };
}
