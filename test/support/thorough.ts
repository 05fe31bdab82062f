/**
 * Tests that take long and rarely find more than similar tests do. BERTH_TEST_FAULTS says which of them run: `all`, or those of the
 * files that it names, separated by spaces. `npm run test:long` names a line of bin/tests-in-turn.txt.
 */
import { join, relative } from 'node:path';

const FAULTS = process.env['BERTH_TEST_FAULTS'] ?? '';
const ALL = FAULTS === 'all';
const PROJECT = join(import.meta.dirname, '..', '..');

/** Options of the long tests of a file: `thorough(import.meta.filename)`. */
export function thorough(file: string): { readonly skip?: string } {
  const runs = ALL || FAULTS.split(' ').includes(relative(PROJECT, file));
  return runs ? {} : { skip: 'only in turn (bin/tests-in-turn.txt), or with BERTH_TEST_FAULTS=all' };
}

/** How often a random test runs: `few` times in each run, `many` times with BERTH_TEST_FAULTS=all. */
export function tries(few: number, many: number): number {
  return ALL ? many : few;
}
