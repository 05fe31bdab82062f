/**
 * Opens what the commands on the server need: settings, secrets and a connection to the database (`withServer`). Also
 * upgrades the database's schema (`berth migrate`).
 */
import { sql } from 'kysely';
import type { Config } from '../../config/config.ts';
import { readEnv } from '../../config/env.ts';
import { type Paths, pathsIn } from '../../config/paths.ts';
import { AuditLog } from '../../control-plane/audit/append.ts';
import { MigrationError, migrate, refuseNewerDatabase } from '../../control-plane/db/migrate.ts';
import { type Db, isUnavailable, openPool, type Tx } from '../../control-plane/db/pool.ts';
import { findRootKey } from '../../control-plane/fleet/root-key.ts';
import { findFirstOrg } from '../../control-plane/organisations/store.ts';
import { lockDataFolder, readSecretKey } from '../../launcher/data-folder.ts';
import { runningDatabaseUrl, startEmbeddedPostgres } from '../../launcher/embedded-postgres.ts';
import { clusterExists } from '../../launcher/postgres-cluster.ts';
import { configOrRefuse } from '../../launcher/start.ts';
import { refuseWrongKey, StartError } from '../../launcher/start-error.ts';
import { messageOf } from '../../shared/errors.ts';
import { CommandError, EXIT } from '../command-error.ts';

export interface ServerContext {
  readonly config: Config;
  readonly paths: Paths;
  readonly database_url: string;
  /** It opens the root key, and is for nothing else. */
  readonly secret_key: Buffer;
  readonly root_key: Buffer;
  readonly db: Db;
  readonly audit: AuditLog;
}

/** @throws CommandError when the embedded database does not run */
async function databaseUrl(config: Config): Promise<string> {
  const url = config.database_url ?? (await runningDatabaseUrl(pathsIn(config.data_dir)));
  if (url !== undefined) return url;
  throw new CommandError(
    `the database of ${config.data_dir} does not run; start Berth first, or set BERTH_DATA_DIR`,
    { exit_code: EXIT.unavailable },
  );
}

/** What a command says when the database cannot be reached, or is of another version. */
function databaseProblem(error: unknown): Error {
  if (error instanceof MigrationError)
    return new StartError(`database: ${error.message}`, 2, { cause: error });
  const exit_code = isUnavailable(error) ? EXIT.unavailable : EXIT.failed;
  return new CommandError(`the database cannot be used: ${messageOf(error)}`, { exit_code });
}

/** Refuses a database that a newer program has migrated. */
async function requireDatabase(db: Db, database_url: string): Promise<void> {
  try {
    await sql`select 1`.execute(db);
    await refuseNewerDatabase(database_url);
  } catch (error) {
    throw databaseProblem(error);
  }
}

/** @throws StartError when the settings or the secret key are wrong, CommandError when the database does not run */
export async function withServer<T>(work: (server: ServerContext) => Promise<T>): Promise<T> {
  const config = configOrRefuse(readEnv(), process.cwd());
  return atDatabase(config, await databaseUrl(config), work);
}

/** The same, for what a start needs: starts the embedded database meanwhile, if it does not run. */
export async function withStoppedServer<T>(work: (server: ServerContext) => Promise<T>): Promise<T> {
  const config = configOrRefuse(readEnv(), process.cwd());
  const paths = pathsIn(config.data_dir);
  const runs = config.database_url !== null || (await runningDatabaseUrl(paths)) !== undefined;
  if (runs || !(await clusterExists(paths.postgres))) return withServer(work);
  const lock = await lockDataFolder(paths.launcher_lock, () => undefined);
  try {
    const postgres = await startEmbeddedPostgres(paths, { say: () => undefined });
    try {
      return await atDatabase(config, postgres.database_url, work);
    } finally {
      await postgres.stop();
    }
  } finally {
    lock.release();
  }
}

async function atDatabase<T>(
  config: Config,
  database_url: string,
  work: (server: ServerContext) => Promise<T>,
): Promise<T> {
  const paths = pathsIn(config.data_dir);
  const secret_key = await readSecretKey(paths, config.secret_key);
  const db = openPool(database_url, () => undefined, 2);
  try {
    await requireDatabase(db, database_url);
    const found = await findRootKey(db, secret_key);
    if (found === undefined)
      throw new CommandError('Berth has never started on this database: start it once', {
        exit_code: EXIT.state,
      });
    const root_key = refuseWrongKey(found, config, paths);
    const audit = new AuditLog(root_key);
    return await work({ config, paths, database_url, secret_key, root_key, db, audit });
  } finally {
    await db.destroy();
  }
}

/**
 * Audits an operator's action on the whole installation, in the log of the first organisation, because every entry belongs to
 * one (ADR 53). Runs in the transaction of the action.
 */
export async function noteOperator(
  tx: Tx,
  { audit }: Pick<ServerContext, 'audit'>,
  action: string,
  target: string,
  data: Record<string, unknown> = {},
): Promise<void> {
  const org_id = await findFirstOrg(tx);
  if (org_id === null) return;
  await audit.append(tx, org_id, { actor: 'operator', action, target, ip: null, request_id: null, data });
}

/** Repeated after an interruption, it applies the rest. @throws CommandError, StartError */
export async function migrateDatabase(): Promise<string> {
  const url = await databaseUrl(configOrRefuse(readEnv(), process.cwd()));
  const applied = await migrate(url).catch((error: unknown) => {
    throw databaseProblem(error);
  });
  return [
    ...applied.map((name) => `applied ${name}\n`),
    applied.length === 0 ? 'the database was up to date\n' : 'the database is up to date\n',
  ].join('');
}
