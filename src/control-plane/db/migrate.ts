/**
 * Applies the migrations, the files `sql/NNNNNN-name.sql`. Each runs once, in order, in its own transaction, under an
 * advisory lock, so processes may start concurrently. An applied migration never changes: its SHA-256 is stored.
 *
 * During an upgrade, programs of two versions use one database. The first line of a migration says which programs may
 * use the database after it, and `schema_migrations.needs` tells this to programs that do not know the migration:
 *
 *     -- expand                  all programs: the migration only adds what older ones leave alone
 *     -- contract after NAME     programs that know the migration NAME: it removes what they no longer use
 *     (neither)                  programs that know this migration
 */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { pause } from '../../shared/retry.ts';
import { connect } from './connect.ts';
import { sqlStateOf } from './pool.ts';

const SQL_DIR = join(import.meta.dirname, 'sql');
const LOCK_KEY = 7_400_001;
const STEP = /^-- (?:(expand)|contract after (\d{6}-[a-z0-9-]+\.sql))$/;

/**
 * Statements that wait for the migration wait as long as it waits for its locks; so it gives up soon and tries again. Under
 * load, a migration of several tables may also end in a deadlock.
 */
const LOCKED = new Set(['55P03', '40P01']);
const LOCKS = { wait_ms: 2_000, tries: 30, pause_ms: 1_000 };

const OWN_TABLE = `
  create table if not exists schema_migrations (
    name       text primary key,
    sha256     text not null,
    needs      text not null,
    applied_at timestamptz not null default now()
  );
  comment on table schema_migrations is 'The migrations that were applied.';
  comment on column schema_migrations.name is 'The name of the file.';
  comment on column schema_migrations.sha256 is 'SHA-256 of the file, which never changes.';
  comment on column schema_migrations.needs is 'The migration that a program must know to use the database after this one.';`;

export class MigrationError extends Error {
  override name = 'MigrationError';
}

/** A row of `schema_migrations`. */
export interface AppliedMigration {
  readonly name: string;
  readonly sha256: string;
  /** The migration that a program must know to use the database. Absent, as in a backup: this one. */
  readonly needs?: string;
}

interface Migration extends AppliedMigration {
  readonly needs: string;
  readonly text: string;
}

/** Every program knows the first migration. */
function neededAfter(name: string, text: string, every: string): string {
  const [first = ''] = text.split('\n', 1);
  const [, expands, after] = STEP.exec(first) ?? [];
  if (expands === undefined && after === undefined && /^-- *(expand|contract)/i.test(first))
    throw new MigrationError(
      `${name}: its first line is neither "-- expand" nor "-- contract after NAME.sql"`,
    );
  return expands === undefined ? (after ?? name) : every;
}

function readMigrations(dir: string): Migration[] {
  const names = readdirSync(dir)
    .filter((name) => name.endsWith('.sql'))
    .sort();
  return names.map((name) => {
    if (!/^\d{6}-[a-z0-9-]+\.sql$/.test(name)) throw new MigrationError(`${name}: not named NNNNNN-name.sql`);
    const text = readFileSync(join(dir, name), 'utf8');
    return {
      name,
      text,
      sha256: createHash('sha256').update(text).digest('hex'),
      needs: neededAfter(name, text, names[0] ?? name),
    };
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
  const client = await connect(url, { statement_timeout_ms: 0 });
  try {
    await client.query('select pg_advisory_lock($1)', [LOCK_KEY]);
    const applied = await appliedMigrations(client);
    if (applied.length === 0) await client.query(OWN_TABLE);
    return await apply(client, migrations, applied);
  } finally {
    await client.end();
  }
}

/** Changes nothing. @throws MigrationError if this program cannot use the database because a later one has migrated it */
export async function refuseNewerDatabase(url: string, dir = SQL_DIR): Promise<void> {
  const client = await connect(url);
  try {
    refuseUnknown(readMigrations(dir), await appliedMigrations(client));
  } finally {
    await client.end();
  }
}

/** Changes nothing. @throws MigrationError if this program cannot use the database as it is: it is too new, or too old */
export async function requireMigrated(url: string, dir = SQL_DIR): Promise<void> {
  const client = await connect(url);
  try {
    const [known, applied] = [readMigrations(dir), await appliedMigrations(client)];
    refuseUnknown(known, applied);
    const done = new Set(applied.map(({ name }) => name));
    const missing = known.filter(({ name }) => !done.has(name));
    if (missing.length > 0)
      throw new MigrationError(
        `it lacks the migration ${missing[0]?.name}: run berth migrate, which upgrades it`,
      );
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
  // Berth before 0.1.0 did not always have the column `needs`, and its databases are to be refused by name.
  const applied = `
    select name, sha256, coalesce(to_jsonb(m) ->> 'needs', name) as needs from schema_migrations m order by name`;
  return (await client.query<AppliedMigration>(applied)).rows;
}

/**
 * Refuses a database in which a migration of this program was changed, or an unknown one needs more than this program knows.
 * @throws MigrationError
 */
export function refuseUnknown(
  known: readonly AppliedMigration[],
  applied: readonly AppliedMigration[],
): void {
  const by_name = new Map(known.map(({ name, sha256 }) => [name, sha256]));
  const refusing = applied.find(({ name, needs }) => !by_name.has(name) && !by_name.has(needs ?? name));
  if (refusing) {
    throw new MigrationError(
      `the database was made by another version of Berth (migration ${refusing.name} is unknown): use that version, or another data folder`,
    );
  }
  const changed = applied.find(({ name, sha256 }) => by_name.has(name) && by_name.get(name) !== sha256);
  if (changed)
    throw new MigrationError(
      `the database was made by another version of Berth (migration ${changed.name} has changed since): use that version, or another data folder`,
    );
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
  const missing = migrations.filter(({ name }) => !done.has(name));
  for (const migration of missing) await applyOne(client, migration);
  return missing.map(({ name }) => name);
}

async function applyOne(client: pg.Client, { name, sha256, needs, text }: Migration): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    await client.query('begin');
    try {
      await client.query(`set local lock_timeout = ${LOCKS.wait_ms}`);
      await client.query(text);
      const row = [name, sha256, needs];
      await client.query('insert into schema_migrations (name, sha256, needs) values ($1, $2, $3)', row);
      await client.query('commit');
      return;
    } catch (error) {
      await client.query('rollback');
      if (!LOCKED.has(sqlStateOf(error) ?? '') || attempt === LOCKS.tries) {
        const message = `${name} failed: ${error instanceof Error ? error.message : String(error)}`;
        throw new MigrationError(message, { cause: error });
      }
    }
    await pause(LOCKS.pause_ms);
  }
}
