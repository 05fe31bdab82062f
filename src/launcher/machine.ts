/**
 * Defines the kinds of machine and the roles that each runs: `all` (an installation on one machine), `control-plane` or
 * `host`. Checks the settings that a kind needs before any process starts, so that a missing one ends the start at
 * once.
 *
 * Also holds the settings of Node.js and malloc that keep the agent below 200 MiB
 * (docs/adr/0020-memory-of-the-agent.md).
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import { readJoinToken } from './join.ts';
import { StartError } from './start-error.ts';

/** `all`: an installation on one machine, or the first one of a fleet. The others are single roles of a fleet. */
export const MACHINES = ['all', 'control-plane', 'host'] as const;
export type MachineKind = (typeof MACHINES)[number];

/** The roles on each, in the order of their start. */
export const ROLES_OF: Record<MachineKind, readonly ('control-plane' | 'agent' | 'ingress')[]> = {
  all: ['control-plane', 'agent', 'ingress'],
  'control-plane': ['control-plane'],
  host: ['agent'],
};

/** @throws StartError with a line for each missing setting */
export async function checkMachine(machine: MachineKind, config: Config, paths: Paths): Promise<void> {
  const missing = NEEDS[machine](config, paths);
  if (missing.length > 0) throw new StartError(missing.join('\n'));
  if (machine !== 'host' || config.join === null) return;
  const { token_path } = config.join;
  // A host that has joined needs the token no more.
  if (!existsSync(paths.host_credential) || existsSync(token_path)) await readJoinToken(token_path);
}

const NEEDS: Record<MachineKind, (config: Config, paths: Paths) => string[]> = {
  all: ({ join, ingress_join }) => {
    const of_another = 'of another control plane: run berth';
    if (join) return [`BERTH_CONTROL_PLANE: is set, so this machine is a host ${of_another} host`];
    return ingress_join
      ? [`BERTH_CONTROL_PLANE: is set, so this machine is an ingress ${of_another} ingress`]
      : [];
  },
  'control-plane': (config, paths) => {
    const missing: string[] = [];
    if (config.database_url === null)
      missing.push('DATABASE_URL: is not set; all control planes of an installation use one PostgreSQL');
    if (config.s3 === null)
      missing.push(
        'BERTH_S3_BUCKET: is not set; all hosts and control planes of an installation use one bucket',
      );
    if (config.secret_key === null && !existsSync(paths.secret_key))
      missing.push(
        'BERTH_SECRET_KEY: is not set; all control planes of an installation have the same (openssl rand -hex 32 makes one)',
      );
    if (config.hosts_listen === null)
      missing.push('BERTH_HOSTS_LISTEN: is not set; hosts, ingresses and other control planes connect there');
    else if (config.hosts_url === null)
      missing.push(
        'BERTH_HOSTS_URL: is not set, and BERTH_HOSTS_LISTEN names no address that others can dial; expected https://HOST:PORT of this machine',
      );
    return missing;
  },
  host: ({ join, s3 }) => {
    const missing: string[] = [];
    if (join === null)
      missing.push(
        'BERTH_CONTROL_PLANE: is not set; expected https://HOST:PORT where a control plane listens to hosts',
        'BERTH_HOST_TOKEN_FILE: is not set; expected the file with the token that berth host add NAME printed',
      );
    if (s3 !== null)
      missing.push(
        'BERTH_S3_BUCKET: is set, but a host of a fleet has no bucket: the control plane signs its requests. Remove BERTH_S3_… and the credentials from this machine',
      );
    return missing;
  },
};

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
