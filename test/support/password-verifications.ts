/** Counts the password verifications of this process, including those against the dummy hash. */
import { subscribe } from 'node:diagnostics_channel';
import { VERIFY_CHANNEL } from '../../src/control-plane/identity/passwords.ts';

let count = 0;
subscribe(VERIFY_CHANNEL, () => {
  count += 1;
});

/** The number of verifications during `work`, if nothing else runs meanwhile. */
export async function passwordVerificationsDuring(work: () => Promise<unknown>): Promise<number> {
  const before = count;
  await work();
  return count - before;
}
