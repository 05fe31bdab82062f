/** Runs graphile-worker's jobs: one runner and one pool of connections per task, until the signal aborts. */
import { Logger, type LogLevel, type Runner, run } from 'graphile-worker';
import type pg from 'pg';
import { NO_ANSWER_MS } from '../db/pool.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import type { Log } from '../lib/log.ts';
import { JobsPool } from './jobs-pool.ts';
import { JOBS_SCHEMA } from './store.ts';

export interface JobTask {
  readonly name: string;
  /** Concurrent jobs in this process. */
  readonly slots: number;
  readonly work: (payload: unknown) => Promise<void>;
}

const POLL_MS = 2_000;
/** How long a stopping runner may write after its last job. */
const LAST_WRITES_MS = 3_000;
/** Per task: one for LISTEN and a few for the slots. */
const CONNECTIONS = 4;

/** Runs until `signal` aborts and every job has ended. A broken runner is restarted. */
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
    const pool = new JobsPool(url, CONNECTIONS, NO_ANSWER_MS);
    const under_way = new Set<Promise<void>>();
    const work = async (payload: unknown) => {
      const job = task.work(payload);
      under_way.add(job);
      await job.finally(() => under_way.delete(job));
    };
    try {
      const runner = await start(pool, { ...task, work }, log);
      await endOf(runner, under_way, signal);
    } catch (error) {
      log.warn({ err: error, task: task.name }, 'jobs: the runner broke');
    } finally {
      await pool.end().catch(() => undefined);
    }
    if (Date.now() - began_ms > 60_000) attempt = 0;
    if (!signal.aborted) await pause(backoffMs(attempt, 200, 5_000), signal);
  }
}

/** Resolves when the runner has broken, or has stopped and written its jobs' results, or failed to within the time. */
async function endOf(
  runner: Runner,
  under_way: ReadonlySet<Promise<void>>,
  signal: AbortSignal,
): Promise<void> {
  const stop = () => runner.stop().catch(() => undefined);
  const over = new AbortController();
  const ended = runner.promise.then(stop).finally(() => over.abort());
  const { promise: unwritten, resolve: giveUp } = Promise.withResolvers<void>();
  const onAbort = async () => {
    void stop();
    await Promise.allSettled(under_way);
    // While the database is unavailable, the library would retry for hours.
    await pause(LAST_WRITES_MS, over.signal);
    giveUp();
  };
  signal.addEventListener('abort', onAbort, { once: true, signal: over.signal });
  if (signal.aborted) void onAbort();
  await Promise.race([ended, unwritten]);
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
        // One reader for all slots: otherwise each idle slot would poll the database.
        localQueue: { size: slots },
      },
    },
  });
}

/** Logs errors as warnings. The library warns that there are fewer connections than slots, which is intended. */
function loggerOf(log: Log): Logger {
  return new Logger(() => (level: LogLevel, message: string) => {
    if (level === 'error' || level === 'warning') {
      log[level === 'error' ? 'warn' : 'debug']({ library: 'graphile-worker' }, message);
    }
  });
}
