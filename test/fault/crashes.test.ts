/** A few random power cuts and kills. `crashes.ts` runs any number of them. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { crashScene, DISASTERS } from '../support/crash-scene.ts';
import { CANNOT_CUT_DISKS } from '../support/cut-disk.ts';
import { CANNOT_BOOT_GUESTS } from '../support/installation.ts';
import { tries } from '../support/thorough.ts';

const ROUNDS = tries(3, 40);
/** A stop, the making of an image, and a resume or a flush with a stopped guest agent. */
const SEED = 21;

for (const disaster of DISASTERS) {
  test(`no data that a receipt or a FLUSH covers is lost, unless the start says so: ${disaster}`, {
    skip: CANNOT_BOOT_GUESTS || (disaster === 'power' && CANNOT_CUT_DISKS),
    timeout: tries(600_000, 7_200_000),
  }, async (t) => {
    await using scene = await crashScene(disaster, SEED);
    for (let round = 0; round < ROUNDS; round++) t.diagnostic(await scene.rounds.once());
    assert.equal(scene.rounds.total.rounds, ROUNDS);
  });
}
