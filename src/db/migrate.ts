/**
 * Forward-only migrations: `sql/NNNNNN-name.sql`, each run once, in order, in a transaction of its own, under
 * an advisory lock so that any number of processes may start at once. A migration that was applied never
 * changes (its SHA-256 is kept), and a database that knows migrations this program does not is refused.
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

interface Migration {
  readonly name: string;
  readonly text: string;
  readonly sha256: string;
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

/** Brings the database at `url` up to date. Returns the names of the migrations that it ran. */
export async function migrate(url: string, dir = SQL_DIR): Promise<string[]> {
  const migrations = readMigrations(dir);
  const client = new pg.Client(connectionOptions(url, 0));
  await client.connect();
  try {
    await client.query('select pg_advisory_lock($1)', [LOCK_KEY]);
    await client.query(
      'create table if not exists schema_migrations (name text primary key, sha256 text not null, applied_at timestamptz not null default now())',
    );
    const { rows } = await client.query<{ name: string; sha256: string }>(
      'select name, sha256 from schema_migrations',
    );
    return await apply(client, migrations, new Map(rows.map((row) => [row.name, row.sha256])));
  } finally {
    await client.end();
  }
}

async function apply(
  client: pg.Client,
  migrations: Migration[],
  applied: Map<string, string>,
): Promise<string[]> {
  const known = new Set(migrations.map((migration) => migration.name));
  const foreign = [...applied.keys()].filter((name) => !known.has(name));
  if (foreign.length > 0) {
    throw new MigrationError(
      `the database is newer than this program (it has ${foreign.join(', ')}): use the newer berth`,
    );
  }
  const ran: string[] = [];
  for (const migration of migrations) {
    const before = applied.get(migration.name);
    if (before === migration.sha256) continue;
    if (before !== undefined)
      throw new MigrationError(`${migration.name} was changed after it had been applied`);
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
