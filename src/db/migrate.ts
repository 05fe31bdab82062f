/**
 * Forward-only migrations: `sql/NNNNNN-name.sql`. Each runs once, in order, in its own transaction, under an advisory lock
 * so that processes may start concurrently. An applied migration never changes (its SHA-256 is stored). A database with
 * migrations that this program does not know is rejected.
 */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import { connectionOptions } from './pool.ts';

const SQL_DIR = join(import.meta.dirname, 'sql');
const LOCK_KEY = 7_400_001;

export class MigrationError extends Error {
  override name = 'MigrationError';
}

/** A row of `schema_migrations`. */
export interface AppliedMigration {
  readonly name: string;
  readonly sha256: string;
}

interface Migration extends AppliedMigration {
  readonly text: string;
}

function readMigrations(dir: string): Migration[] {
  const names = readdirSync(dir)
    .filter((name) => name.endsWith('.sql'))
    .sort();
  return names.map((name) => {
    if (!/^\d{6}-[a-z0-9-]+\.sql$/.test(name)) throw new MigrationError(`${name}: not named NNNNNN-name.sql`);
    const text = readFileSync(join(dir, name), 'utf8');
    return { name, text, sha256: createHash('sha256').update(text).digest('hex') };
  });
}

export interface MigrateOptions {
  readonly dir?: string;
  /** Only these migrations, for a backup of an older schema. */
  readonly only?: ReadonlySet<string>;
}

/** Applies the missing migrations and returns their names. */
export async function migrate(url: string, { dir = SQL_DIR, only }: MigrateOptions = {}): Promise<string[]> {
  const migrations = readMigrations(dir).filter(({ name }) => only?.has(name) ?? true);
  const client = new pg.Client(connectionOptions(url, 0));
  await client.connect();
  try {
    await client.query('select pg_advisory_lock($1)', [LOCK_KEY]);
    await client.query(
      'create table if not exists schema_migrations (name text primary key, sha256 text not null, applied_at timestamptz not null default now())',
    );
    return await apply(client, migrations, await appliedMigrations(client));
  } finally {
    await client.end();
  }
}

/** Changes nothing. @throws MigrationError if the database has migrations that this program does not know */
export async function refuseNewerDatabase(url: string, dir = SQL_DIR): Promise<void> {
  const client = new pg.Client(connectionOptions(url));
  await client.connect();
  try {
    refuseUnknown(readMigrations(dir), await appliedMigrations(client));
  } finally {
    await client.end();
  }
}

/** Empty if the table does not exist yet. */
export async function appliedMigrations(client: pg.Client): Promise<AppliedMigration[]> {
  const { rows } = await client.query<{ there: boolean }>(
    "select to_regclass('public.schema_migrations') is not null as there",
  );
  if (rows[0]?.there !== true) return [];
  const applied = 'select name, sha256 from schema_migrations order by name';
  return (await client.query<AppliedMigration>(applied)).rows;
}

/**
 * Checks that this program knows all of these migrations unchanged, so that it can apply the rest.
 * @throws MigrationError
 */
export function refuseUnknown(
  known: readonly AppliedMigration[],
  applied: readonly AppliedMigration[],
): void {
  const by_name = new Map(known.map(({ name, sha256 }) => [name, sha256]));
  const foreign = applied.filter(({ name }) => !by_name.has(name));
  if (foreign.length > 0) {
    const [first] = foreign;
    throw new MigrationError(
      `the database was made by another version of Berth (migration ${first?.name} is unknown): use that version, or another data folder`,
    );
  }
  const changed = applied.find(({ name, sha256 }) => by_name.get(name) !== sha256);
  if (changed) throw new MigrationError(`migration ${changed.name} was changed after it had been applied`);
}

/** The migrations of this program. */
export function knownMigrations(): readonly AppliedMigration[] {
  return readMigrations(SQL_DIR);
}

async function apply(
  client: pg.Client,
  migrations: readonly Migration[],
  applied: readonly AppliedMigration[],
): Promise<string[]> {
  refuseUnknown(migrations, applied);
  const done = new Set(applied.map(({ name }) => name));
  const ran: string[] = [];
  for (const migration of migrations) {
    if (done.has(migration.name)) continue;
    await client.query('begin');
    try {
      await client.query(migration.text);
      await client.query('insert into schema_migrations (name, sha256) values ($1, $2)', [
        migration.name,
        migration.sha256,
      ]);
      await client.query('commit');
    } catch (error) {
      await client.query('rollback');
      throw new MigrationError(
        `${migration.name} failed: ${error instanceof Error ? error.message : String(error)}`,
        {
          cause: error,
        },
      );
    }
    ran.push(migration.name);
  }
  return ran;
}
