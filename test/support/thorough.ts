/** Tests that take long and seldom find more than their neighbours do: BERTH_TEST_FAULTS=all runs them too. */
const ALL = process.env['BERTH_TEST_FAULTS'] === 'all';
export const THOROUGH = ALL ? {} : { skip: 'only with BERTH_TEST_FAULTS=all' };

/** How often something random, or one of many alike, is tried: `few` times in each `npm test`, which adds up. */
export function tries(few: number, many: number): number {
  return ALL ? many : few;
}
