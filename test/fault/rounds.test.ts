/**
 * A few random rounds, with seeds whose first choices strike with each kind of fault that replaces what hosts, database or store
 * have, and need few boots. Sixty rounds contain every kind, and a control plane that stops for nearly a minute. `rounds.ts` runs
 * any number.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { drawRound, KillRounds } from '../support/kill-rounds.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';
import { seededRandom } from '../support/seeded-random.ts';
import { tries } from '../support/thorough.ts';
import { ToxicProxy } from '../support/toxic-proxy.ts';

/**
 * The database is restored to an earlier copy in a flush, and after a resume. The host's disk is replaced in a stop, and in a flush
 * while the agent is killed. The launcher and the database are killed in flushes.
 */
const LOCAL = { seed: 98_853, rounds: tries(6, 60) };
/** The store fails in a stop, and answers wrongly in a flush and while a guest reads its disk. The host's disk is replaced in a stop. */
const WITH_STORE = { seed: 74_960, rounds: tries(4, 40) };
const OPTIONS = { skip: CANNOT_BOOT_GUESTS, timeout: tries(600_000, 7_200_000) };

/** Fails after a change of the choices: then other seeds are to be found. */
test('the few rounds replace the disk in a stop, restore the database in a flush and after a resume, and ask a wrong store for a disk', () => {
  const choices = (seed: number, count: number, has_store: boolean) => {
    const random = seededRandom(seed);
    const rounds = Array.from({ length: count }, () => drawRound(random, has_store));
    return rounds.flatMap(({ work, victims }) => victims.map((victim) => `${work}: ${victim}`));
  };
  const drawn = [...choices(LOCAL.seed, 6, false), ...choices(WITH_STORE.seed, 4, true)];
  for (const wanted of [
    'force stop: replaced disk',
    'long flush: replaced disk',
    'flush: older database',
    'resume: older database',
    'lazy start: store wrong',
    'stop: replaced disk',
  ])
    assert.ok(drawn.includes(wanted), `${wanted} is not among ${drawn.join(', ')}`);
});

async function run(
  t: TestContext,
  { seed, rounds: count }: typeof LOCAL,
  settings: Readonly<Record<string, string>>,
  store: ToxicProxy | null,
): Promise<void> {
  const berth = await Installation.start({ settings });
  t.after(() => berth.dispose());
  // A session lasts an hour.
  await berth.client.takeKey();
  using rounds = new KillRounds(berth, await GuestInstance.running(berth, 'rounds'), seed, store);
  for (let round = 0; round < count; round++) t.diagnostic(await rounds.once());
  assert.equal(rounds.total.rounds, count);
}

test(
  'random faults lose no fsynced data and no data of a receipt unless that is reported, run no memory twice, and show the guest no error',
  OPTIONS,
  (t) => run(t, LOCAL, {}, null),
);

test('so do random faults of an object store that also fails and answers wrongly', OPTIONS, async (t) => {
  const server = await S3Server.start();
  t.after(() => server.close());
  const store = await ToxicProxy.open(server.port);
  t.after(() => store.cut());
  await run(t, WITH_STORE, bucketSettings(await server.bucket(store.endpoint)), store);
});
