/** When a delivery that failed is tried again. Pure. */

/** Before the second attempt, the third, …: ten attempts in all, over about 45 hours. */
const DELAYS_S = [5, 30, 120, 600, 1_800, 7_200, 21_600, 43_200, 86_400] as const;
export const MAX_TRIES = DELAYS_S.length + 1;
const SPREAD = 0.2;
/** However long a receiver asks for. */
export const MAX_DELAY_MS = 86_400_000 * (1 + SPREAD);

/**
 * The wait after the failure of attempt number `tries` (1, 2, …), in milliseconds: the schedule's ± 20 %, or longer when the
 * receiver asked for it (`Retry-After`). Null: that was the last one.
 */
export function retryDelayMs(
  tries: number,
  retry_after_seconds: number | null,
  random: () => number = Math.random,
): number | null {
  const delay_s = DELAYS_S[tries - 1];
  if (delay_s === undefined) return null;
  const spread_ms = delay_s * 1000 * (1 - SPREAD + 2 * SPREAD * random());
  return Math.round(Math.min(Math.max(spread_ms, (retry_after_seconds ?? 0) * 1000), MAX_DELAY_MS));
}
