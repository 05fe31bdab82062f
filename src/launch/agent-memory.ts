/** How Node.js is started for the agent, which is to stay below 200 MiB (docs/adr/0028-memory-of-the-agent.md). */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

/**
 * New space: of three threads, each else takes up to 32 MiB of it. Old space: far more than is ever needed, but the nearer
 * its bound the sooner V8 collects. And one thread of V8's own beside ours instead of four.
 */
export const AGENT_FLAGS: readonly string[] = [
  '--max-semi-space-size=1',
  '--max-old-space-size=512',
  '--v8-pool-size=1',
];

/**
 * glibc, left to itself, raises the bound from which on memory comes from the system alone, and then keeps what was freed;
 * and each thread has memory of its own, in pieces. Bounds too low cost more than the work itself: each 4 KiB that come from
 * the system are a page fault, and a block passes through several buffers. So: a megabyte and more from the system, at most
 * 4 MiB of freed memory kept, and all threads together.
 */
export const AGENT_ENV: Readonly<Record<string, string>> = {
  MALLOC_MMAP_THRESHOLD_: '1048576',
  MALLOC_TRIM_THRESHOLD_: '4194304',
  MALLOC_ARENA_MAX: '1',
};

const WARM_UP_MS = 60_000;

/**
 * Where Node.js keeps our sources without their types, for all roles: to take types out it loads a compiler, some 20 MiB in
 * each thread. Filled before the first start. Without it, where the folder cannot be written, all is as before but larger.
 * A package holds JavaScript, in a folder that nobody writes to: it has nothing to keep.
 */
export async function compiledSources(
  project_dir: string,
  env: Readonly<Record<string, string | undefined>>,
): Promise<Record<string, string | undefined>> {
  if (!import.meta.filename.endsWith('.ts')) return env;
  const folder = join(project_dir, '.cache', 'compiled');
  const with_it = { ...env, NODE_COMPILE_CACHE: folder };
  if (!existsSync(folder)) {
    const load = `await import(${JSON.stringify(join(project_dir, 'src', 'roles', 'agent.ts'))})`;
    const args = ['--input-type=module', '--eval', load];
    const warm_up = promisify(execFile)(process.execPath, args, { env: with_it, timeout: WARM_UP_MS });
    await warm_up.catch(() => undefined);
  }
  return with_it;
}
