/** A few rounds of chance, with a seed whose choices need one boot in all: `rounds.ts` does as many as one likes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { KillRounds } from '../support/kill-rounds.ts';

const ROUNDS = 6;
const SEED = 6147;

test('whoever is killed, what was fsynced and what receipts cover is there, and the guest sees no error', {
  skip: CANNOT_BOOT_GUESTS,
  timeout: 600_000,
}, async (t) => {
  const berth = await Installation.start();
  t.after(() => berth.dispose());
  const rounds = new KillRounds(berth, await GuestInstance.running(berth, 'rounds'), SEED);
  for (let round = 0; round < ROUNDS; round++) t.diagnostic(await rounds.once());
  assert.equal(rounds.total.rounds, ROUNDS);
});
