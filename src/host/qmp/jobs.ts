/**
 * Waits for a QEMU block job. Jobs are created with `auto-dismiss=false`, so a finished one stays `concluded` until
 * `job-dismiss`, and query-jobs shows a state whose event was missed.
 */
import { type QmpClient, QmpTimeoutError } from './qmp-client.ts';
import type { JobInfo, JobState } from './types.ts';

/** QEMU has no job with that id. */
export class JobGoneError extends Error {
  override name = 'JobGoneError';
}

/** A job in one of these states changes no more. */
const FINAL: readonly JobState[] = ['concluded', 'null'];

/**
 * Resolves with the job once it is in one of `states` or in a final state (`concluded`: check `error`).
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
    // Listen before asking, so that no change in between is missed.
    const changed = client.waitForEvent(
      (event) => event.event === 'JOB_STATUS_CHANGE' && event.data.id === id,
      { timeout_ms: left_ms, signal },
    );
    try {
      // The signal also ends the wait for a QEMU that does not reply.
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
