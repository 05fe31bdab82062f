/**
 * Makes a fresh, migrated database for each test file. `npm test` starts one server for all files (`bin/run-tests.ts`),
 * and passes its URL in BERTH_TEST_POSTGRES. A file that is run by hand starts its own server, and so does a file that
 * kills or stops the server.
 */
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { type Db, openPool } from '../../src/control-plane/db/pool.ts';
import { startTestPostgres } from './test-postgres.ts';

export interface TestDatabase {
  /** Of the migrated database. */
  readonly url: string;
  readonly db: Db;
  /** The folder of the server's unix socket. */
  readonly socket_dir: string;
  /** Makes another, empty database on the same server. */
  createEmpty(name: string): Promise<string>;
  close(): Promise<void>;
}

export interface DatabaseOptions {
  /** A server for this database alone. */
  readonly own_server?: boolean;
}

/** The caller closes it in an `after` hook. */
export async function startDatabase({ own_server = false }: DatabaseOptions = {}): Promise<TestDatabase> {
  const shared = own_server ? undefined : process.env['BERTH_TEST_POSTGRES'];
  const own = shared === undefined ? await startTestPostgres() : undefined;
  const server_url = shared ?? own?.url ?? '';
  const databases: string[] = [];
  const create = async (name: string, template: string): Promise<string> => {
    // By copying files: by the log it takes seven times the processor time (the default suits large servers).
    await administer(server_url, `create database ${name} template ${template} strategy file_copy`);
    databases.push(name);
    return withDatabase(server_url, name);
  };
  const end = async () => {
    if (own) return own.stop();
    for (const name of databases) await administer(server_url, `drop database ${name} with (force)`);
  };
  try {
    const own_name = `test_${process.pid}_${randomBytes(4).toString('hex')}`;
    const url = await create(own_name, new URL(server_url).pathname.slice(1));
    const db = openPool(url, () => undefined);
    return {
      url,
      db,
      socket_dir: new URL(server_url).searchParams.get('host') ?? '',
      createEmpty: (name) => create(`${own_name}_${name}`, 'template0'),
      close: async () => {
        await db.destroy();
        await end();
      },
    };
  } catch (error) {
    await end();
    throw error;
  }
}

/** Runs one statement on a connection of its own. */
export async function queryOnce<Row extends pg.QueryResultRow>(
  url: string,
  text: string,
  values: unknown[] = [],
): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query<Row>(text, values)).rows;
  } finally {
    await client.end();
  }
}

/** The migrated database is a template only while nobody is connected to it. */
async function administer(server_url: string, statement: string): Promise<void> {
  await queryOnce(withDatabase(server_url, 'postgres'), statement);
}

function withDatabase(server_url: string, name: string): string {
  const url = new URL(server_url);
  url.pathname = `/${name}`;
  return url.href;
}
