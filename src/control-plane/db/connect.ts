/**
 * Opens connections to the PostgreSQL server that takes writes. DATABASE_URL may name several servers, and after a
 * failover one name may lead to another server. So each new connection is asked whether its server takes writes, and
 * closed if the server is a standby: what a standby has may be old, such as a credential that has been revoked since.
 */
import pg from 'pg';
import { assert } from '../../shared/assert.ts';
import { serverUrls } from '../../shared/setting-values.ts';

const INT8_OID = 20;
const NUMERIC_OID = 1700;

function parseInteger(text: string): number {
  const value = Number(text);
  assert(Number.isSafeInteger(value), `bigint out of range: ${text}`);
  return value;
}

const types: pg.CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    oid === INT8_OID || oid === NUMERIC_OID ? parseInteger : pg.types.getTypeParser(oid, format ?? 'text'),
} as pg.CustomTypesConfig;

/** Probes idle connections: firewalls drop them silently, and so do hosts that crash. */
const KEEP_ALIVE = { keepAlive: true, keepAliveInitialDelayMillis: 10_000 } as const;
/** A statement without an answer for so long fails, although its server answers others: it ends statements well before. */
export const NO_ANSWER_MS = 60_000;
/** A server that does not answer a new connection within this time counts as silent. */
export const CONNECT_MS = 5_000;

/**
 * How long a transaction may sit idle or wait for a lock. One that hangs with a lock blocks everyone who needs
 * it.
 */
const HANGS_MS = 5_000;

/**
 * Options of every connection of the program. `statement_timeout_ms` bounds each statement. 0 is for long work on a
 * dedicated connection: no timeouts for statements, answers and locks.
 */
export function connectionOptions(url: string, statement_timeout_ms = 30_000): pg.ClientConfig {
  return {
    ...KEEP_ALIVE,
    connectionString: url,
    types,
    statement_timeout: statement_timeout_ms,
    connectionTimeoutMillis: CONNECT_MS,
    ...(statement_timeout_ms === 0
      ? { idle_in_transaction_session_timeout: 60_000 }
      : {
          idle_in_transaction_session_timeout: HANGS_MS,
          lock_timeout: HANGS_MS,
          query_timeout: NO_ANSWER_MS,
        }),
    // Tables are in memory or on flash: indexes before scans, also in plans that were made while a table was small. No statement
    // is worth its compilation, which takes longer than the longest of them.
    options: '-c random_page_cost=1.1 -c jit=off',
  };
}

/** No server takes writes now, or the connection leads to another one than before. It passes. */
export class NoServerError extends Error {
  override name = 'NoServerError';
}

/** A server process: another one after each restart and each failover, also behind the same address. */
export interface Server {
  readonly url: string;
  readonly identity: string;
}

/** Such as an interrupted `standby` or a role that may only read. @throws NoServerError when it takes no writes */
export async function identify(client: pg.ClientBase): Promise<string> {
  const asked = {
    text: `select current_setting('transaction_read_only') = 'on' as read_only,
      concat_ws(' ', inet_server_addr(), inet_server_port(), pg_postmaster_start_time()) as identity`,
    query_timeout: CONNECT_MS,
  };
  const { rows } = await client.query<{ read_only: boolean; identity: string }>(asked);
  if (rows[0]?.read_only !== false) throw new NoServerError('the database server takes no writes');
  return rows[0].identity;
}

export interface ConnectOptions {
  readonly statement_timeout_ms?: number;
  readonly query_timeout_ms?: number;
}

/** A connection to the server that takes writes. Its errors between statements are ignored. The caller ends it. */
export async function connect(url: string, options: ConnectOptions = {}): Promise<pg.Client> {
  return (await firstWritable(url, options)).client;
}

/** @throws the error of the only server, or NoServerError with those of all */
export async function findServer(url: string): Promise<Server> {
  const { client, ...server } = await firstWritable(url, {});
  client.end().catch(() => undefined);
  return server;
}

interface Opened extends Server {
  readonly client: pg.Client;
}

/** Asks all servers at once: a silent one delays nothing while another takes writes. */
async function firstWritable(url: string, options: ConnectOptions): Promise<Opened> {
  const urls = serverUrls(url);
  assert(urls !== null, 'DATABASE_URL was checked when it was read');
  const attempts = urls.map((each) => open(each, options));
  try {
    const first = await Promise.any(attempts);
    for (const attempt of attempts) {
      attempt
        .then(async ({ client }) => {
          if (client !== first.client) await client.end();
        })
        .catch(() => undefined);
    }
    return first;
  } catch (error) {
    assert(error instanceof AggregateError, 'every attempt failed');
    const [only, second] = error.errors as Error[];
    if (second === undefined) throw only;
    const causes = urls.map((each, i) => `${new URL(each).host}: ${(error.errors[i] as Error).message}`);
    throw new NoServerError(`no database server takes writes (${causes.join('; ')})`, { cause: error });
  }
}

async function open(
  url: string,
  { statement_timeout_ms, query_timeout_ms }: ConnectOptions,
): Promise<Opened> {
  const client = new pg.Client({
    ...connectionOptions(url, statement_timeout_ms),
    ...(query_timeout_ms !== undefined && { query_timeout: query_timeout_ms }),
  });
  client.on('error', () => undefined);
  try {
    await client.connect();
    return { url, client, identity: await identify(client) };
  } catch (error) {
    client.end().catch(() => undefined);
    throw error;
  }
}
