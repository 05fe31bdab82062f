/**
 * Starts a PostgreSQL server for tests, by the code of `npm start`, on a copy of the migrated cluster. The server runs
 * without fsync, because its data need not survive, and in memory if there is room. Its folder is named after its
 * process, so the next server can end and remove what a killed process left behind.
 */
import { mkdir, mkdtemp, readdir, rm, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathsIn } from '../../src/config/paths.ts';
import { migrate } from '../../src/control-plane/db/migrate.ts';
import {
  type EmbeddedPostgres,
  runningServer,
  startEmbeddedPostgres,
  stopServer,
} from '../../src/launcher/embedded-postgres.ts';
import { isAlive } from '../../src/launcher/run-command.ts';
import { copyCluster } from './cluster-template.ts';
import { endIfInterrupted } from './interrupted.ts';

const PREFIX = 'berth-db-';
const IN_MEMORY = '/dev/shm';
const ROOM_BYTES = 2 * 2 ** 30;
/** Several test files at once, each with a few pools. */
const SETTINGS = { fsync: 'off', full_page_writes: 'off', max_connections: '400' };

export interface TestPostgres {
  /** Of the migrated database. */
  readonly url: string;
  stop(): Promise<void>;
}

export async function startTestPostgres(): Promise<TestPostgres> {
  for (const scratch of [IN_MEMORY, tmpdir()]) await sweepLeftovers(scratch);
  const folder = await mkdtemp(join(await scratchFolder(), `${PREFIX}${process.pid}-`));
  let server: EmbeddedPostgres | undefined;
  const stop = async () => {
    await server?.stop();
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    stopped();
  };
  const stopped = endIfInterrupted(stop);
  try {
    const paths = pathsIn(join(folder, 'data'));
    await mkdir(paths.postgres, { recursive: true, mode: 0o711 });
    await copyCluster(join(paths.postgres, 'cluster'));
    server = await startEmbeddedPostgres(paths, { say: () => undefined, settings: SETTINGS });
    await migrate(server.database_url);
    return { url: server.database_url, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** In memory where the databases of a run have room. */
async function scratchFolder(): Promise<string> {
  const { bavail, bsize } = await statfs(IN_MEMORY).catch(() => ({ bavail: 0, bsize: 0 }));
  return bavail * bsize > ROOM_BYTES ? IN_MEMORY : tmpdir();
}

async function sweepLeftovers(scratch: string): Promise<void> {
  for (const name of await readdir(scratch).catch(() => [])) {
    const pid = Number(new RegExp(`^${PREFIX}(\\d+)-`).exec(name)?.[1]);
    if (!Number.isSafeInteger(pid) || isAlive(pid)) continue;
    const folder = join(scratch, name);
    const server = await runningServer(join(pathsIn(join(folder, 'data')).postgres, 'cluster'));
    if (server) await stopServer(server.pid).catch(() => undefined);
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}
