/** Tests that take long and rarely find more than similar tests do. Only BERTH_TEST_FAULTS=all runs them. */
const ALL = process.env['BERTH_TEST_FAULTS'] === 'all';
export const THOROUGH = ALL ? {} : { skip: 'only with BERTH_TEST_FAULTS=all' };

/** How often a random test runs: `few` times in each run, `many` times with BERTH_TEST_FAULTS=all. */
export function tries(few: number, many: number): number {
  return ALL ? many : few;
}
