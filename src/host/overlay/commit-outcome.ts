/** The outcomes of a commit to a disk, and the retries until the outcome is known. */
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { CommitResponse } from '../../protocol/types.ts';
import { backoffMs, pause } from '../../shared/backoff.ts';

/** Another placement has the disk. This machine must end, and its writes since its last commit are void. */
export class FencedError extends Error {
  override name = 'FencedError';
}

/**
 * The head is another commit of this same VM: an earlier agent's commit succeeded after that agent died, or the database lost
 * the newest commits. The overlay still holds everything; the next flush compares all of it and commits again.
 */
export class HeadMovedError extends Error {
  override name = 'HeadMovedError';

  constructor(generation: number) {
    super(`the head is another generation ${generation} of this VM; flush again`);
  }
}

/** Repeats a commit until its outcome is known. @throws FencedError */
export async function commitUntilKnown(
  commit: () => Promise<CommitResponse>,
  signal: AbortSignal,
): Promise<string> {
  const answer = await askUntilKnown(commit, signal);
  if (answer.outcome === 'fenced') throw new FencedError(answer.why);
  return answer.durable_at;
}

/** Repeats a request while the control plane is away. Once `signal` aborts, throws the last failure. */
export async function askUntilKnown<T>(ask: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof ControlPlaneUnavailable)) throw error;
      if (!(await pause(backoffMs(attempt, 100, 3_000), signal))) throw error;
    }
  }
}
