/**
 * Runs `bin/berth` as the operator does on the server. The server has its own data folder, and uses the database of an
 * API in this process.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { pathsIn } from '../../src/config/paths.ts';
import { ensureSecrets, makeDataFolder } from '../../src/launcher/data-folder.ts';
import type { OrgId } from '../../src/shared/ids.ts';
import type { TestApi } from './api.ts';

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');

export interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

export interface ServerCli {
  readonly data_dir: string;
  readonly settings: Readonly<Record<string, string>>;
  readonly berth: (...args: string[]) => Promise<Ran>;
  /** Runs without the server's settings. */
  readonly berthWith: (env: Readonly<Record<string, string>>, args: readonly string[]) => Promise<Ran>;
  /** Returns stdout. The command must succeed without output on stderr. */
  readonly done: (...args: string[]) => Promise<string>;
  /** `action by actor` of each audit entry, oldest first. */
  readonly actions: (org_id: OrgId) => Promise<string[]>;
}

function berthWith(env: Readonly<Record<string, string>>, args: readonly string[]): Promise<Ran> {
  return new Promise((resolve) => {
    execFile(BERTH, [...args], { env: { PATH: process.env['PATH'] ?? '', ...env } }, (error, out, err) => {
      resolve({ code: error === null ? 0 : Number(error.code), out, err });
    });
  });
}

/** Awaited at the top of a test file. */
export async function serverCliForFile(api: TestApi): Promise<ServerCli> {
  const data_dir = await mkdtemp(join(tmpdir(), 'berth-cli-'));
  after(() => rm(data_dir, { recursive: true, force: true }));
  await makeDataFolder(pathsIn(data_dir));
  await ensureSecrets(pathsIn(data_dir), null, false);
  const settings = {
    BERTH_DATA_DIR: data_dir,
    DATABASE_URL: api.database.url,
    BERTH_SECRET_KEY: api.secret_key.toString('hex'),
  };
  const berth = (...args: string[]) => berthWith(settings, args);
  const done = async (...args: string[]) => {
    const ran = await berth(...args);
    assert.deepEqual([ran.code, ran.err], [0, ''], ran.out);
    return ran.out;
  };
  const actions = async (org_id: OrgId) => {
    const entries = api.db.selectFrom('audit_log').select(['action', 'actor']).where('org_id', '=', org_id);
    const found = await entries.orderBy('serial').execute();
    return found.map(({ action, actor }) => `${action} by ${actor}`);
  };
  return { data_dir, settings, berth, berthWith, done, actions };
}
