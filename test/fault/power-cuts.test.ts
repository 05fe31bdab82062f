/** Some power cuts of chance. `power-cuts.ts` does as many as one likes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CANNOT_CUT_DISKS } from '../support/cut-disk.ts';
import { cutInstallation } from '../support/cut-installation.ts';
import { CANNOT_BOOT_GUESTS } from '../support/installation.ts';
import { tries } from '../support/thorough.ts';

const CUTS = tries(3, 40);
const SEED = 21;

test('after a power cut all is there that a receipt or a FLUSH of the guest covers, unless the start says otherwise', {
  skip: CANNOT_BOOT_GUESTS || CANNOT_CUT_DISKS,
  timeout: tries(600_000, 7_200_000),
}, async (t) => {
  await using scene = await cutInstallation(SEED);
  for (let cut = 0; cut < CUTS; cut++) t.diagnostic(await scene.cuts.once());
  assert.equal(scene.cuts.total.cuts, CUTS);
});
