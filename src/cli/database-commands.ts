/** `berth migrate`: the first step of an upgrade of a fleet, before the programs. */
import { readEnv } from '../config/env.ts';
import { migrate } from '../control-plane/db/migrate.ts';
import { configOrRefuse } from '../launcher/start.ts';
import { databaseProblem, databaseUrl } from './server-context.ts';

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
