/** The backoff of a delivery. Pure. */

/** Before attempts 2, 3, …: ten attempts in all, over about 45 hours. */
const DELAYS_S = [5, 30, 120, 600, 1_800, 7_200, 21_600, 43_200, 86_400] as const;
export const MAX_TRIES = DELAYS_S.length + 1;
const JITTER = 0.2;
/** The upper bound of what `Retry-After` may ask for. */
export const MAX_DELAY_MS = 86_400_000 * (1 + JITTER);

/**
 * The wait after the failure of attempt number `tries` (1, 2, …), in milliseconds: the scheduled delay ±20 %, or the
 * receiver's `Retry-After` if that is longer. Null after the last attempt.
 */
export function retryDelayMs(
  tries: number,
  retry_after_seconds: number | null,
  random: () => number = Math.random,
): number | null {
  const delay_s = DELAYS_S[tries - 1];
  if (delay_s === undefined) return null;
  const jittered_ms = delay_s * 1000 * (1 - JITTER + 2 * JITTER * random());
  return Math.round(Math.min(Math.max(jittered_ms, (retry_after_seconds ?? 0) * 1000), MAX_DELAY_MS));
}
