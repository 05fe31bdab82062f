/**
 * Waiting for a QEMU block job. Jobs here are made with `auto-dismiss=false`, so a finished one stays visible as
 * `concluded` until `job-dismiss`, and a state cannot be missed: what events do not say, query-jobs does.
 */
import { type QmpClient, QmpTimeoutError } from './qmp-client.ts';
import type { JobInfo, JobState } from './types.ts';

/** QEMU knows no job of that id (any more). */
export class JobGoneError extends Error {
  override name = 'JobGoneError';
}

/** States after which the state asked for cannot come. */
const FINAL: readonly JobState[] = ['concluded', 'null'];

/**
 * The job, once it is in one of `states`, or in a final one (`concluded`: look at `error`) whichever comes first.
 * Rejects with {@link JobGoneError}, QmpTimeoutError, QmpClosedError, or the signal's reason.
 */
export async function waitForJob(
  client: QmpClient,
  id: string,
  states: readonly JobState[],
  options: { readonly timeout_ms: number; readonly signal?: AbortSignal },
): Promise<JobInfo> {
  const deadline = performance.now() + options.timeout_ms;
  for (;;) {
    const left_ms = Math.max(1, Math.ceil(deadline - performance.now()));
    const abandon = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, abandon.signal]) : abandon.signal;
    // Listen first, then look: a change between the two is seen by the listener.
    const changed = client.waitForEvent(
      (event) => event.event === 'JOB_STATUS_CHANGE' && event.data.id === id,
      { timeout_ms: left_ms, signal },
    );
    try {
      // A QEMU that does not answer is not waited for past the signal.
      const asked = client.execute('query-jobs', undefined, { timeout_ms: left_ms });
      const jobs = await Promise.race([asked, changed.then(() => asked)]);
      const job = jobs.find((candidate) => candidate.id === id);
      if (!job) throw new JobGoneError(`QEMU has no job ${id}`);
      if (states.includes(job.status) || FINAL.includes(job.status)) return job;
      if (performance.now() >= deadline) {
        throw new QmpTimeoutError(`job ${id} is still ${job.status} after ${options.timeout_ms} ms`);
      }
      await changed;
    } finally {
      abandon.abort();
    }
  }
}
