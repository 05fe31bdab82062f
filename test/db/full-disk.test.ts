/** A full disk of the database is detected without writing to it. The disk is a small file system in memory, so this needs root. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { pathsIn } from '../../src/config/paths.ts';
import { isDiskFull } from '../../src/control-plane/db/disk-space.ts';
import { type Db, hasFailedForSpace, openPool } from '../../src/control-plane/db/pool.ts';
import { startEmbeddedPostgres } from '../../src/launcher/embedded-postgres.ts';
import { SmallDisk } from '../support/small-disk.ts';

const LEFT_BYTES = 256 * 1024;
/** Longer than an answer, or a failed write, is remembered. */
const LATER_MS = 31_000;

test('a full disk is reported until there is space again', {
  skip: process.getuid?.() !== 0 && 'mounting a file system takes root',
}, async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-full-'));
  const paths = pathsIn(join(folder, 'data'));
  await mkdir(paths.data, { recursive: true, mode: 0o755 });
  const disk = new SmallDisk(paths.postgres, 160, 0o711);
  const ends: (() => Promise<unknown>)[] = [];
  after(async () => {
    for (const end of ends.toReversed()) await end();
    disk.unmount();
    await rm(folder, { recursive: true, force: true });
  });
  const server = await startEmbeddedPostgres(paths, { say: () => undefined });
  ends.push(() => server.stop());
  const open = (): Db => {
    const db = openPool(server.database_url, () => undefined, 2);
    ends.push(() => db.destroy());
    return db;
  };
  const db = open();
  const now = performance.now.bind(performance);
  let passed_ms = 0;
  t.mock.method(performance, 'now', () => now() + passed_ms);

  assert.equal(await isDiskFull(db), false);
  disk.fill(LEFT_BYTES);
  assert.equal(await isDiskFull(db), false, 'it is not asked for each time');
  for (let times = 0; times < 3; times++) {
    passed_ms += LATER_MS;
    assert.equal(hasFailedForSpace(db), false, 'nothing has failed lately');
    assert.equal(await isDiskFull(db), true);
    await sql`select 1`.execute(db);
  }
  await disk.makeRoom();
  passed_ms += LATER_MS;
  assert.equal(await isDiskFull(db), false);
  assert.equal(await isDiskFull(open()), false);
});
