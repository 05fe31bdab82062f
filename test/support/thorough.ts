/** Tests that take long and seldom find more than their neighbours do: BERTH_TEST_FAULTS=all runs them too. */
export const THOROUGH =
  process.env['BERTH_TEST_FAULTS'] === 'all' ? {} : { skip: 'only with BERTH_TEST_FAULTS=all' };
