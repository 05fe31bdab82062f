/** Settings of Node.js that keep the agent below 200 MiB (docs/adr/0028-memory-of-the-agent.md). */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

/**
 * New space: by default each of the three threads may use 32 MiB. Old space: more than the agent ever needs, but V8 collects
 * sooner near the bound. One V8 worker thread instead of four.
 */
export const AGENT_FLAGS: readonly string[] = [
  '--max-semi-space-size=1',
  '--max-old-space-size=512',
  '--v8-pool-size=1',
];

/**
 * By default glibc raises its mmap threshold, keeps freed memory, and gives each thread its own arena. Thresholds that are too
 * low cost time: every 4 KiB from the system is a page fault. So: blocks of a MiB and more come from the system, at most
 * 4 MiB of freed memory is kept, and all threads share one arena.
 */
export const AGENT_ENV: Readonly<Record<string, string>> = {
  MALLOC_MMAP_THRESHOLD_: '1048576',
  MALLOC_TRIM_THRESHOLD_: '4194304',
  MALLOC_ARENA_MAX: '1',
};

const WARM_UP_MS = 60_000;

/**
 * The environment with Node's compile cache, filled before the first start. Without a cache each thread loads a compiler of
 * some 20 MiB to strip types. If the folder cannot be written, the roles only use more memory. A package holds JavaScript
 * and needs no cache.
 */
export async function compiledSources(
  project_dir: string,
  env: Readonly<Record<string, string | undefined>>,
): Promise<Record<string, string | undefined>> {
  if (!import.meta.filename.endsWith('.ts')) return env;
  const folder = join(project_dir, '.cache', 'compiled');
  const with_it = { ...env, NODE_COMPILE_CACHE: folder };
  if (!existsSync(folder)) {
    const load = `await import(${JSON.stringify(join(project_dir, 'src', 'launcher', 'roles', 'agent.ts'))})`;
    const args = ['--input-type=module', '--eval', load];
    const warm_up = promisify(execFile)(process.execPath, args, { env: with_it, timeout: WARM_UP_MS });
    await warm_up.catch(() => undefined);
  }
  return with_it;
}
