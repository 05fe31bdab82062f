/**
 * graphile-worker's tables in its own schema, and adding jobs within our transactions. A job is a hint to look at our
 * rows. Each has a key, and at most one job waits per key.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { JobsPool } from './jobs-pool.ts';

export const JOBS_SCHEMA = 'graphile_worker';

export interface NewJob {
  readonly task: string;
  readonly key: string;
  readonly payload: Record<string, unknown>;
  /** Absent: now. */
  readonly run_at?: Date;
}

/** Migrates the library's tables; processes may do it concurrently. */
export async function migrateJobs(url: string): Promise<void> {
  // The library's own pool stops listening for errors before its connections are closed, so a server that shuts down in
  // between would end the process.
  const pool = new JobsPool(url, 2);
  // Adding jobs does not need the library.
  const { runMigrations } = await import('graphile-worker');
  try {
    await runMigrations({ pgPool: pool, schema: JOBS_SCHEMA });
  } finally {
    await pool.end();
  }
}

const ATTEMPTS = 5;

/**
 * Replaces the waiting job with the same key. A running one is unaffected; the new job runs after or beside it.
 * `keep_time`: the waiting job keeps its time.
 */
export async function addJobs(tx: Tx, jobs: readonly NewJob[], keep_time = false): Promise<void> {
  if (jobs.length === 0) return;
  let left = jobs.map(({ task, key, payload, run_at }) => ({
    identifier: task,
    payload,
    job_key: key,
    run_at: run_at?.toISOString(),
  }));
  // The library silently skips a job whose key is being taken by a worker at this moment. The next statement sees the
  // job as running and adds a new one.
  for (let attempt = 0; left.length > 0 && attempt < ATTEMPTS; attempt++) {
    const { rows } = await sql<{ key: string }>`
      select added.key from graphile_worker.add_jobs(
        array(select json_populate_recordset(null::graphile_worker.job_spec, ${JSON.stringify(left)}::json)),
        ${keep_time}) as added`.execute(tx);
    const added = new Set(rows.map(({ key }) => key));
    left = left.filter(({ job_key }) => !added.has(job_key));
  }
}

/** Deletes jobs that failed for good, such as those left by dead processes. */
export async function deleteDeadJobs(tx: Tx): Promise<void> {
  await sql`
    delete from graphile_worker._private_jobs
    where attempts >= max_attempts and (locked_at is null or locked_at < now() - interval '1 hour')`.execute(
    tx,
  );
}
