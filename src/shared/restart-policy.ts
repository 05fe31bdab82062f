/** When a failed VM is started again by itself. Pure. */

export const RESTART_POLICIES = ['never', 'on_failure'] as const;
export type RestartPolicy = (typeof RESTART_POLICIES)[number];

/** So many in the window; then the VM stays failed until somebody starts it. */
export const RESTARTS_MAX = 5;
export const RESTARTS_WINDOW_MS = 10 * 60_000;
const FIRST_DELAY_MS = 1_000;

/**
 * The time of the next start, with a delay that doubles with each start in the window; null: the VM stays failed.
 * @param failed_at when the newest boot failed @param restarted_at the starts by itself, in any order
 */
export function nextRestart(failed_at: Date, restarted_at: readonly Date[]): Date | null {
  const since_ms = failed_at.getTime() - RESTARTS_WINDOW_MS;
  const count = restarted_at.filter((at) => at.getTime() > since_ms).length;
  return count >= RESTARTS_MAX ? null : new Date(failed_at.getTime() + FIRST_DELAY_MS * 2 ** count);
}
