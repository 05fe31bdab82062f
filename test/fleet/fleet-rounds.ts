/**
 * Rounds of faults against a whole fleet: npm run fleet-rounds -- --rounds N --minutes M --seed S --lease SECONDS, by default 100
 * rounds with a new seed. It ends after N rounds, or after the round in which M minutes are over. Prints the seed, a line for each
 * round, and a summary. When a promise was broken it prints which, what happened in that round, and where the whole history is.
 * It needs root, a network namespace of its own (`unshare --net`), and what `patroniMissing` names.
 */
import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { patroniMissing } from '../support/patroni.ts';
import { CLOCKS_CAN_JUMP } from './rounds/clock.ts';
import { Fleet } from './rounds/fleet.ts';
import { History } from './rounds/history.ts';
import { Rounds, type RoundsTotal } from './rounds/rounds.ts';

const text = { type: 'string' } as const;
const { values } = parseArgs({ options: { rounds: text, minutes: text, seed: text, lease: text } });
const minutes = Number(values.minutes ?? Number.POSITIVE_INFINITY);
const rounds = Number(values.rounds ?? (values.minutes === undefined ? 100 : Number.POSITIVE_INFINITY));
const seed = Number(values.seed ?? Date.now() % 1_000_000);
/** Short, and long enough for a busy machine. */
const lease_s = Number(values.lease ?? 12);
const say = (line: string) => process.stdout.write(`${line}\n`);
const seconds = (ms: number) => `${(ms / 1_000).toFixed(1)} s`;

function summary({ elsewhere_ms, ...total }: RoundsTotal): string {
  const counts = Object.entries(total).map(([name, count]) => `${count} ${name}`);
  const longest =
    elsewhere_ms.length === 0 ? 'no instance lost its host' : `${seconds(Math.max(...elsewhere_ms))} at most`;
  return `${counts.join(', ')}; until ${elsewhere_ms.length} instances of lost hosts ran elsewhere: ${longest}; no violation`;
}

async function run(history: History): Promise<void> {
  const began = performance.now();
  const fleet = await Fleet.start(lease_s, say);
  try {
    const striking = await Rounds.begin(fleet, history, seed);
    say(`the fleet runs after ${seconds(performance.now() - began)}`);
    const first = performance.now();
    for (let number = 1; number <= rounds && performance.now() - first < minutes * 60_000; number++) {
      const round = performance.now();
      say(`${number}: ${await striking.once()}, all is well after ${seconds(performance.now() - round)}`);
    }
    say(`seed ${seed}, ${seconds(performance.now() - first)}: ${summary(await striking.end())}`);
  } finally {
    await fleet.close();
  }
}

const missing = patroniMissing();
if (missing !== null) throw new Error(`a fleet cannot run here: it ${missing}`);
say(
  `seed ${seed}, a lease of ${lease_s} s${CLOCKS_CAN_JUMP ? '' : '; no clock jumps, because the package faketime is missing'}`,
);
const history = new History(join(tmpdir(), `berth-rounds-${seed}-${process.pid}.jsonl`));
try {
  await run(history);
  rmSync(history.path, { force: true });
  process.exit(0);
} catch (error) {
  const last = history.events.findLastIndex(({ kind }) => kind === 'fault');
  const lines = history.events.slice(Math.max(0, last - 20)).filter(({ kind }) => kind !== 'record');
  say(lines.map((event) => JSON.stringify(event)).join('\n'));
  say(
    `FAILED with seed ${seed}: ${error instanceof Error ? error.stack : String(error)}\nthe history is in ${history.path}`,
  );
  process.exit(1);
}
