/**
 * The program of the benchmarks: npm run bench -- [NAME…] [--runs N] [--accel auto|kvm|tcg] [--dir DIR]. Each figure is
 * the ratio of two sides, which are measured in turn in this run. The program prints a table and a JSON line for each
 * figure to stdout, and progress to stderr. It writes the results of complete benchmarks into bench/README.md.
 *
 * At the end, also after a failure or Ctrl-C, all processes end and the folder is removed.
 */
import { mkdir, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { readEnv } from '../src/config/env.ts';
import { currentGuestImage } from '../src/launcher/guest-image.ts';
import { present } from '../src/shared/assert.ts';
import { messageOf } from '../src/shared/errors.ts';
import { asAgent } from './as-agent.ts';
import { backupBench } from './backup.ts';
import { coldStartBench } from './cold-start.ts';
import { execsBench } from './execs.ts';
import { type Bench, type Measured, table } from './figure.ts';
import { filesBench } from './files.ts';
import { flushBench } from './flush.ts';
import { guestIoBench } from './guest-io.ts';
import { hostileGuestBench } from './hostile-guest.ts';
import { httpPortsBench } from './http-ports.ts';
import { Installation } from './installation.ts';
import { memoryBench } from './memory.ts';
import { permissionsBench } from './permissions.ts';
import { requestsBench } from './requests.ts';
import { describeRun, MIN_RUNS, writeResults } from './results.ts';
import { scaleBench } from './scale.ts';
import { startBench } from './start.ts';
import { webhooksBench } from './webhooks.ts';

const BENCHES: readonly Bench[] = [
  startBench,
  coldStartBench,
  flushBench,
  hostileGuestBench,
  asAgent(backupBench),
  guestIoBench,
  memoryBench,
  filesBench,
  asAgent(permissionsBench),
  requestsBench,
  webhooksBench,
  httpPortsBench,
  execsBench,
  scaleBench,
];
const PROJECT_DIR = join(import.meta.dirname, '..');
const RUNS_MAX = 1_000;

class UsageError extends Error {}

interface Options {
  readonly benches: readonly Bench[];
  readonly runs: number;
  readonly accel: string;
  readonly dir: string;
}

function usage(): string {
  return [
    'usage: npm run bench -- [NAME…] [--runs N] [--accel auto|kvm|tcg] [--dir DIR]',
    ...BENCHES.map(({ name, summary }) => `  ${name.padEnd(10)} ${summary}`),
    '  --runs N     measured rounds of each figure (5); one more before them is discarded',
    '  --accel A    as BERTH_ACCEL (auto)',
    '  --dir DIR    folder for the temporary installation (default: the system’s)',
  ].join('\n');
}

function readOptions(args: readonly string[]): Options {
  const parsed = (() => {
    try {
      return parseArgs({
        args: [...args],
        allowPositionals: true,
        options: {
          runs: { type: 'string', default: '5' },
          accel: { type: 'string', default: 'auto' },
          dir: { type: 'string', default: tmpdir() },
        },
      });
    } catch (error) {
      throw new UsageError(messageOf(error));
    }
  })();
  const { values, positionals } = parsed;
  const unknown = positionals.find((name) => BENCHES.every((bench) => bench.name !== name));
  if (unknown !== undefined) throw new UsageError(`there is no benchmark "${unknown}"`);
  const runs = Number(values.runs);
  if (!Number.isInteger(runs) || runs < 1 || runs > RUNS_MAX)
    throw new UsageError(`--runs takes 1 to ${RUNS_MAX}`);
  if (!['auto', 'kvm', 'tcg'].includes(values.accel)) throw new UsageError('--accel takes auto, kvm or tcg');
  const benches = BENCHES.filter(({ name }) => positionals.length === 0 || positionals.includes(name));
  return { benches, runs, accel: values.accel, dir: resolve(values.dir) };
}

function say(line: string): void {
  process.stderr.write(`${line}\n`);
}

/** Adds to `results` after each benchmark, so that a later failure does not hide them. */
async function measure(options: Options, results: Measured[], signal: AbortSignal): Promise<void> {
  const given = readEnv()['BERTH_TEST_IMAGE_DIR'];
  const image_dir = given ?? (await currentGuestImage(join(PROJECT_DIR, '.cache', 'images', 'debian-12')));
  await using cleanup = new AsyncDisposableStack();
  const dir = await realpath(await mkdtemp(join(options.dir, 'berth-bench-')));
  cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  let installation: Installation | null = null;
  const start = async () => {
    say(`starting an installation in ${dir}`);
    const own = await Installation.start({
      project_dir: PROJECT_DIR,
      data_dir: join(dir, 'data'),
      log_path: join(dir, 'log'),
      accel: options.accel,
      signal,
    });
    cleanup.defer(() => {
      say('cleaning up');
      return own.end();
    });
    say(`accelerator: ${own.accelerator}`);
    return own;
  };
  const names = BENCHES.map(({ name }) => name);
  for (const bench of options.benches) {
    say(`== ${bench.name}: ${bench.summary}`);
    const scratch_dir = join(dir, bench.name);
    await mkdir(scratch_dir, { mode: 0o700 });
    const { runs } = options;
    const host = { scratch_dir, image_dir, runs, signal, say };
    if (!bench.alone) installation ??= await start();
    const about = await describeRun(PROJECT_DIR, installation?.accel ?? options.accel, runs);
    const rows = await (bench.alone
      ? bench.run(host)
      : bench.run({ ...host, installation: present(installation, 'installation') }));
    results.push(...rows);
    if (rows.length > 0 && runs >= MIN_RUNS)
      await writeResults(PROJECT_DIR, { name: bench.name, about, rows }, names);
  }
}

/** @returns the exit code */
async function main(args: readonly string[]): Promise<number> {
  const stop = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(name, () => stop.abort(new Error(`${name}: stopped before the end`)));
  }
  const results: Measured[] = [];
  try {
    await measure(readOptions(args), results, stop.signal);
    return 0;
  } catch (error) {
    if (error instanceof UsageError) {
      say(`bench: ${error.message}\n${usage()}`);
      return 2;
    }
    say(
      `bench: ${stop.signal.aborted ? messageOf(stop.signal.reason) : error instanceof Error ? error.stack : error}`,
    );
    return stop.signal.aborted ? 130 : 1;
  } finally {
    if (results.length > 0) process.stdout.write(`${table(results)}\n`);
    for (const { figure } of results) process.stdout.write(`${JSON.stringify(figure)}\n`);
  }
}

process.exitCode = await main(process.argv.slice(2));
