/** How Node.js is started for the agent, which is to stay below 200 MiB (docs/adr/0028-memory-of-the-agent.md). */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

/**
 * New space: of three threads, each else takes up to 32 MiB of it. And one thread of V8's own beside ours instead of four,
 * each of which makes an arena of glibc's for what it frees.
 */
export const AGENT_FLAGS: readonly string[] = ['--max-semi-space-size=1', '--v8-pool-size=1'];

/**
 * For buffers of a megabyte and more, from several threads: glibc, left to itself, raises this bound and then keeps what
 * was freed. With 256 MiB read lazily the agent held 250 MiB without it and 150 MiB with it. What is smaller lies in arenas,
 * one a thread and each in pieces of its own, unless there are few.
 */
export const AGENT_ENV: Readonly<Record<string, string>> = {
  MALLOC_MMAP_THRESHOLD_: '131072',
  MALLOC_ARENA_MAX: '2',
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
