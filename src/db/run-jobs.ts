/** Runs jobs of the job library: a pool of connections for all, slots for each task, again and again until it is told to stop. */
import { Logger, type LogLevel, type Runner, run } from 'graphile-worker';
import type pg from 'pg';
import { backoffMs, pause } from '../lib/backoff.ts';
import type { Log } from '../lib/log.ts';
import { JOBS_SCHEMA } from './jobs.ts';
import { JobsPool } from './jobs-pool.ts';

export interface JobTask {
  readonly name: string;
  /** Jobs that run at a time, in this process. */
  readonly slots: number;
  readonly work: (payload: unknown) => Promise<void>;
}

const POLL_MS = 2_000;
/** A listening one and a few for what the slots do, for each task. */
const CONNECTIONS = 4;

/** Until `signal` aborts; resolves when no job runs any more. A runner that breaks is started again. */
export async function runJobs(
  url: string,
  tasks: readonly JobTask[],
  log: Log,
  signal: AbortSignal,
): Promise<void> {
  await Promise.all(tasks.map((task) => keepRunning(url, task, log, signal)));
}

async function keepRunning(url: string, task: JobTask, log: Log, signal: AbortSignal): Promise<void> {
  for (let attempt = 0; !signal.aborted; attempt++) {
    const began_ms = Date.now();
    const pool = new JobsPool(url, CONNECTIONS);
    try {
      const runner = await start(pool, task, log);
      const stop = () => runner.stop().catch(() => undefined);
      const stopped = () => void stop();
      signal.addEventListener('abort', stopped, { once: true });
      if (signal.aborted) stopped();
      await runner.promise.finally(() => signal.removeEventListener('abort', stopped));
      await stop();
    } catch (error) {
      log.warn({ err: error, task: task.name }, 'jobs: the runner broke');
    } finally {
      await pool.end().catch(() => undefined);
    }
    if (Date.now() - began_ms > 60_000) attempt = 0;
    if (!signal.aborted) await pause(backoffMs(attempt, 200, 5_000), signal);
  }
}

function start(pool: pg.Pool, { name, slots, work }: JobTask, log: Log): Promise<Runner> {
  return run({
    pgPool: pool,
    noHandleSignals: true,
    taskList: { [name]: (payload) => work(payload) },
    parsedCronItems: [],
    logger: loggerOf(log),
    preset: {
      worker: {
        schema: JOBS_SCHEMA,
        concurrentJobs: slots,
        pollInterval: POLL_MS,
        // One reader for all slots: idle ones would each ask the database.
        localQueue: { size: slots },
      },
    },
  });
}

/** Its errors are ours to know; it warns of fewer connections than slots, which is what we want. */
function loggerOf(log: Log): Logger {
  return new Logger(() => (level: LogLevel, message: string) => {
    if (level === 'error' || level === 'warning') {
      log[level === 'error' ? 'warn' : 'debug']({ library: 'graphile-worker' }, message);
    }
  });
}
