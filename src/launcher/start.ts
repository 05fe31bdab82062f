/**
 * The launcher: prepares what the roles of this machine need (folders, packages, secrets, guest image, PostgreSQL),
 * with the cheap checks first, then runs the roles until a signal.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createSecureContext } from 'node:tls';
import { type Config, parseConfig } from '../config/config.ts';
import type { Env } from '../config/env.ts';
import { type Paths, pathsIn } from '../config/paths.ts';
import { messageOf } from '../shared/errors.ts';
import type { Log } from '../shared/log.ts';
import {
  checkListenAddress,
  type DataFolderLock,
  ensureSecretKey,
  ensureSecrets,
  lockDataFolder,
  makeDataFolder,
  refuseUnfinishedRestore,
} from './data-folder.ts';
import { ensureDebianPackages } from './debian-packages.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from './embedded-postgres.ts';
import { type GuestImage, someGuestImage } from './guest-image.ts';
import { checkMachine, compiledSources, type MachineKind } from './machine.ts';
import { clusterExists } from './postgres-cluster.ts';
import { makeReachable, VM_USER } from './reachable.ts';
import { type Say, StartError } from './start-error.ts';
import { type RoleSpec, supervise, superviseUntilSignal } from './supervise.ts';

/** The configuration, or a {@link StartError} with one line per problem. */
export function configOrRefuse(env: Env, cwd: string): Config {
  const result = parseConfig(env, cwd);
  if (!result.ok) throw new StartError(result.problems.join('\n'));
  return result.config;
}

/** What {@link prepare} has acquired for the roles; `close` releases it. */
export interface Prepared {
  readonly paths: Paths;
  readonly database_url: string;
  /** The launcher's environment, with DATABASE_URL, BERTH_DATA_DIR and BERTH_REMOVAL_DELAY_HOURS set. */
  readonly env: Env;
  readonly lock: DataFolderLock;
  /** After an upgrade: builds the newer image while the roles run. */
  readonly newer_image?: ((signal: AbortSignal) => Promise<GuestImage>) | undefined;
  close(): Promise<void>;
}

export interface PrepareOptions {
  /** What runs on this machine; absent: everything. */
  readonly machine?: MachineKind;
  readonly config: Config;
  readonly env: Env;
  /** The folder of package.json. */
  readonly project_dir: string;
  readonly say: Say;
}

/** On a {@link StartError} nothing is left running. */
export async function prepare(options: PrepareOptions): Promise<Prepared> {
  const { machine = 'all', config, env, say } = options;
  const has_control_plane = machine !== 'host';
  const paths = pathsIn(config.data_dir);
  checkTls(config);
  await checkMachine(machine, config, paths);
  await makeDataFolder(paths);
  const lock = await lockDataFolder(paths.launcher_lock, say);
  let postgres: EmbeddedPostgres | undefined;
  let newer_image: Prepared['newer_image'];
  try {
    if (has_control_plane) await checkListenAddress(config.listen);
    if (machine !== 'control-plane') await prepareForVms(options, paths);
    await refuseUnfinishedRestore(paths);
    if (has_control_plane) await ensureAuthority(machine, config, paths);
    if (machine !== 'control-plane') newer_image = await guestImage(options, paths);
    if (has_control_plane && config.database_url === null)
      postgres = await startEmbeddedPostgres(paths, { say });
  } catch (error) {
    lock.release();
    throw error;
  }
  const database_url = config.database_url ?? postgres?.database_url ?? '';
  return {
    paths,
    database_url,
    env: {
      ...env,
      DATABASE_URL: database_url,
      BERTH_DATA_DIR: config.data_dir,
      // Its default depends on whether DATABASE_URL was set here.
      BERTH_REMOVAL_DELAY_HOURS: String(config.removal_delay_ms / 3_600_000),
    },
    lock,
    newer_image,
    close: () => close(postgres, lock),
  };
}

/** Programs and folders. */
async function prepareForVms({ project_dir, env, say }: PrepareOptions, paths: Paths): Promise<void> {
  const is_root = process.getuid?.() === 0;
  const list_paths = [join(project_dir, 'bin', 'debian-packages.txt')];
  await ensureDebianPackages({ list_paths, env, is_root, say });
  if (!is_root) return;
  for (const folder of [paths.debian_12, paths.overlays, paths.vms]) {
    await makeReachable(folder, VM_USER, say);
  }
}

/** Makes sure that there is an image. Returns how to build a newer one. */
async function guestImage(
  { project_dir, say }: PrepareOptions,
  paths: Paths,
): Promise<Prepared['newer_image']> {
  const { newer } = await someGuestImage({
    build_script: join(project_dir, 'guest', 'build.sh'),
    images_dir: paths.debian_12,
    seed_dir: join(project_dir, '.cache', 'images', 'debian-12'),
    say,
  });
  return newer;
}

/** The secrets, which only a control plane's machine has. */
async function ensureAuthority(machine: MachineKind, config: Config, paths: Paths): Promise<void> {
  const has_database = config.database_url === null && (await clusterExists(paths.postgres));
  const ensure = machine === 'all' ? ensureSecrets : ensureSecretKey;
  await ensure(paths, config.secret_key, has_database);
}

async function close(postgres: EmbeddedPostgres | undefined, lock: DataFolderLock): Promise<void> {
  try {
    await postgres?.stop();
  } finally {
    lock.release();
  }
}

function checkTls({ tls }: Config): void {
  if (tls === null) return;
  const read = (name: string, path: string) => {
    try {
      return readFileSync(path);
    } catch (error) {
      throw new StartError(`${name}: ${path} cannot be read: ${messageOf(error)}`);
    }
  };
  const cert = read('BERTH_TLS_CERT', tls.cert_path);
  const key = read('BERTH_TLS_KEY', tls.key_path);
  try {
    createSecureContext({ cert, key });
  } catch (error) {
    throw new StartError(
      `BERTH_TLS_CERT and BERTH_TLS_KEY are not a certificate and its key: ${messageOf(error)}`,
    );
  }
}

export interface StartOptions extends PrepareOptions {
  readonly roles: readonly RoleSpec[];
  readonly log: Log;
  /** Called when the roles have been started; `ended` aborts when they are stopped. */
  readonly started?: (prepared: Prepared, ended: AbortSignal) => void;
}

/** Resolves with the exit code. @throws StartError */
export async function start(options: StartOptions): Promise<number> {
  const { roles, log, say } = options;
  const prepared = await prepare(options);
  const ended = new AbortController();
  let building: Promise<void> | undefined;
  try {
    const supervisor = supervise({
      roles,
      env: await compiledSources(options.project_dir, prepared.env),
      log,
      inherited_fd: prepared.lock.fd,
    });
    options.started?.(prepared, ended.signal);
    building = buildNewerImage(prepared, ended.signal, say);
    return await superviseUntilSignal(supervisor, () => {
      say('stopping; VMs keep running');
      ended.abort();
    });
  } finally {
    ended.abort();
    await building;
    await prepared.close();
  }
}

/** A failure is only reported: the older image works, and the next start tries again. */
async function buildNewerImage({ newer_image }: Prepared, signal: AbortSignal, say: Say): Promise<void> {
  try {
    await newer_image?.(signal);
  } catch (error) {
    if (!signal.aborted)
      say(`${messageOf(error)}; new disks use the older image until a start can build the newer one`);
  }
}
