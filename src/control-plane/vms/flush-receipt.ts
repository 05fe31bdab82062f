/**
 * Receipts of flushes. A receipt says that everything written before the flush is durable. So it is made of a commit that the
 * database has, and in no other way: only {@link receiptOf} makes one, and only `SavedHead.read` makes what it needs.
 */
import type { FlushResult } from '../../protocol/types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import type { SavedHead } from '../instances/saved-head-store.ts';

declare const MADE_OF_A_COMMIT: unique symbol;

type Work = Omit<FlushResult, 'commit_id'>;

export interface FlushReceipt extends Work {
  readonly generation: number;
  readonly durable_at: string | null;
  readonly [MADE_OF_A_COMMIT]: true;
}

/** The writes were durable already. */
const NO_WORK: Work = {
  dirty_bytes: 0,
  uploaded_bytes: 0,
  segments: 0,
  duration_ms: 0,
  consistency: 'offline',
};

/** `work`: what the flush did, if it had to do anything. */
export function receiptOf({ generation, durable_at }: SavedHead, work: Partial<Work> = {}): FlushReceipt {
  const { dirty_bytes, uploaded_bytes, segments, duration_ms, consistency } = { ...NO_WORK, ...work };
  return {
    generation,
    durable_at: durable_at === null ? null : rfc3339(durable_at),
    ...{ dirty_bytes, uploaded_bytes, segments, duration_ms, consistency },
  } as FlushReceipt;
}
