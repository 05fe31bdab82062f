/**
 * Builds the Python package as a wheel, with Debian's tools, and installs it into an empty environment, as its users
 * do. Also lists the TypeScript client and both Python clients, for tests that run the same calls with all three.
 */
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { cp, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { promisify } from 'node:util';
import { Berth } from '../../client/src/berth.ts';
import { type Call, type Outcome, runCalls } from './run-calls.ts';

const run = promisify(execFile);
const PROJECT = join(import.meta.dirname, '..', '..');
/** Debian's own, which has Debian's packages. */
const PYTHON = '/usr/bin/python3';
const OUTPUT_BYTES = 64 * 1024 * 1024;

export interface PythonClient {
  readonly wheel: string;
  /** Python, of the environment with the package. */
  readonly executable: string;
  /** Runs a program with the installed package. Its output. */
  run(args: readonly string[], env?: Readonly<Record<string, string>>, input?: string): Promise<string>;
  runCalls(
    shape: 'sync' | 'async',
    calls: readonly Call[],
    place: Place,
    given?: Readonly<Record<string, unknown>>,
  ): Promise<Outcome[]>;
}

interface Place {
  readonly url: string;
  readonly key: string;
}

export interface AnyClient {
  readonly name: string;
  run(calls: readonly Call[], place: Place, given?: Readonly<Record<string, unknown>>): Promise<Outcome[]>;
}

/** The three that have the same verbs. */
export function clientsWith(python: PythonClient): readonly AnyClient[] {
  return [
    {
      name: 'the TypeScript client',
      run: (calls, { url, key }, given) => runCalls(new Berth({ url, token: key }), calls, given),
    },
    { name: 'the blocking Python client', run: (...given) => python.runCalls('sync', ...given) },
    { name: 'the asynchronous Python client', run: (...given) => python.runCalls('async', ...given) },
  ];
}

/** For a test file, awaited at its top. It is removed after the file's tests. */
export async function pythonClient(): Promise<PythonClient> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-python-'));
  after(() => rm(folder, { recursive: true, force: true }));
  // Building writes beside the sources.
  await cp(join(PROJECT, 'python'), join(folder, 'source'), { recursive: true });
  const offline = ['--quiet', '--no-index', '--no-deps', '--no-cache-dir', '--disable-pip-version-check'];
  const environment = { PATH: '/usr/bin:/bin', HOME: folder };
  const build = [
    '-m',
    'pip',
    'wheel',
    ...offline,
    '--no-build-isolation',
    '-w',
    folder,
    join(folder, 'source'),
  ];
  await run(PYTHON, build, { env: environment });
  const wheel = join(folder, (await readdir(folder)).find((name) => name.endsWith('.whl')) ?? '');
  const venv = join(folder, 'venv');
  await run(PYTHON, ['-m', 'venv', '--without-pip', venv], { env: environment });
  const python = join(venv, 'bin', 'python');
  await run(PYTHON, ['-m', 'pip', '--python', python, 'install', ...offline, wheel], { env: environment });
  const start = async (args: readonly string[], env: Readonly<Record<string, string>> = {}, input = '') => {
    const options = { cwd: folder, env: { ...environment, ...env }, maxBuffer: OUTPUT_BYTES };
    const running = run(python, ['-I', ...args], options);
    running.child.stdin?.end(input);
    return (await running).stdout;
  };
  return {
    wheel,
    executable: python,
    run: start,
    runCalls: async (shape, calls, { url, key }, given = {}) => {
      const program = join(import.meta.dirname, 'run_calls.py');
      const table = join(folder, `${randomUUID()}.json`);
      await writeFile(table, JSON.stringify(calls));
      const env = { BERTH_URL: url, BERTH_API_KEY: key };
      return JSON.parse(await start([program, shape, table, JSON.stringify(given)], env)) as Outcome[];
    },
  };
}
