/**
 * A few random rounds, with a seed whose first choices need only one boot. Sixty rounds contain every kind, and a control plane
 * that stops for nearly a minute. `rounds.ts` runs any number.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { KillRounds } from '../support/kill-rounds.ts';
import { tries } from '../support/thorough.ts';

const ROUNDS = tries(6, 60);
const SEED = 6147;

test('random kills lose no fsynced data and no data of a receipt, and the guest sees no error', {
  skip: CANNOT_BOOT_GUESTS,
  timeout: tries(600_000, 7_200_000),
}, async (t) => {
  const berth = await Installation.start();
  t.after(() => berth.dispose());
  // A session lasts an hour.
  await berth.client.takeKey();
  const rounds = new KillRounds(berth, await GuestInstance.running(berth, 'rounds'), SEED);
  for (let round = 0; round < ROUNDS; round++) t.diagnostic(await rounds.once());
  assert.equal(rounds.total.rounds, ROUNDS);
});
