/** A few random power cuts and kills. `crashes.ts` runs any number of them. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { crashScene, DISASTERS } from '../support/crash-scene.ts';
import { CANNOT_CUT_DISKS } from '../support/cut-disk.ts';
import { CANNOT_BOOT_GUESTS } from '../support/installation.ts';
import { tries } from '../support/thorough.ts';

const ROUNDS = tries(3, 40);
/**
 * The first three rounds. Power cuts: in a stop, in the making of an image, in a resume. Kills: of the database in a start, of QEMU
 * and the agent in a suspend, of QEMU in a resume.
 */
const SEEDS = { power: 21, kill: 271 } as const;

for (const disaster of DISASTERS) {
  test(`no data that a receipt or a FLUSH covers is lost, unless the start says so: ${disaster}`, {
    skip: CANNOT_BOOT_GUESTS || (disaster === 'power' && CANNOT_CUT_DISKS),
    timeout: tries(600_000, 7_200_000),
  }, async (t) => {
    await using scene = await crashScene(disaster, SEEDS[disaster]);
    for (let round = 0; round < ROUNDS; round++) t.diagnostic(await scene.rounds.once());
    assert.equal(scene.rounds.total.rounds, ROUNDS);
  });
}
