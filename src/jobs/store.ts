/**
 * The job library, graphile-worker, in its own schema of our database: its tables, and adding jobs within a
 * transaction of ours. A job is a hint to look at rows of ours: each has a key, and there is at most one waiting for it.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { JobsPool } from './jobs-pool.ts';

export const JOBS_SCHEMA = 'graphile_worker';

export interface NewJob {
  readonly task: string;
  readonly key: string;
  readonly payload: Record<string, unknown>;
  /** Absent: at once. */
  readonly run_at?: Date;
}

/** Makes or updates the library's tables; any number of processes may at once. */
export async function migrateJobs(url: string): Promise<void> {
  // Not a pool of the library's own: it stops listening for errors before its connections have ended, and the last word
  // of a server that goes down in between would end the process.
  const pool = new JobsPool(url, 2);
  // Who only adds jobs does without the library.
  const { runMigrations } = await import('graphile-worker');
  try {
    await runMigrations({ pgPool: pool, schema: JOBS_SCHEMA });
  } finally {
    await pool.end();
  }
}

const ATTEMPTS = 5;

/**
 * A job that waits under the same key is replaced; one that runs is left alone, and the new one runs after or beside it.
 * `keep_time`: one that waits keeps its time.
 */
export async function addJobs(tx: Tx, jobs: readonly NewJob[], keep_time = false): Promise<void> {
  if (jobs.length === 0) return;
  let left = jobs.map(({ task, key, payload, run_at }) => ({
    identifier: task,
    payload,
    job_key: key,
    run_at: run_at?.toISOString(),
  }));
  // A waiting job that a worker takes in this very moment is neither replaced nor joined by a new one: the library
  // skips it in silence. By the next statement it is seen to run.
  for (let attempt = 0; left.length > 0 && attempt < ATTEMPTS; attempt++) {
    const { rows } = await sql<{ key: string }>`
      select added.key from graphile_worker.add_jobs(
        array(select json_populate_recordset(null::graphile_worker.job_spec, ${JSON.stringify(left)}::json)),
        ${keep_time}) as added`.execute(tx);
    const added = new Set(rows.map(({ key }) => key));
    left = left.filter(({ job_key }) => !added.has(job_key));
  }
}

/** Removes what processes that died have left of jobs which have long been replaced. */
export async function deleteDeadJobs(tx: Tx): Promise<void> {
  await sql`
    delete from graphile_worker._private_jobs
    where attempts >= max_attempts and (locked_at is null or locked_at < now() - interval '1 hour')`.execute(
    tx,
  );
}
