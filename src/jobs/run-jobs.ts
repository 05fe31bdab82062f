/** Runs jobs of the job library: a pool of connections for all, slots for each task, again and again until it is told to stop. */
import { Logger, type LogLevel, type Runner, run } from 'graphile-worker';
import type pg from 'pg';
import { NO_ANSWER_MS } from '../db/pool.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import type { Log } from '../lib/log.ts';
import { JobsPool } from './jobs-pool.ts';
import { JOBS_SCHEMA } from './store.ts';

export interface JobTask {
  readonly name: string;
  /** Jobs that run at a time, in this process. */
  readonly slots: number;
  readonly work: (payload: unknown) => Promise<void>;
}

const POLL_MS = 2_000;
/** How long what a stopping runner still writes may take once no job runs. */
const LAST_WRITES_MS = 3_000;
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

/** Until the runner has broken, or was stopped and has written what became of its jobs, or could not for too long. */
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
    // While the database is away the library would try for hours.
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
