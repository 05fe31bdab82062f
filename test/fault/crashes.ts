/**
 * Random crashes: node test/fault/crashes.ts [CUTS [KILLS [SEED]]], by default 100 power cuts and 200 kills. Prints one line per
 * round and a summary; a failure prints the seed, which repeats its choices. `test/support/crash-rounds.ts` defines a round.
 * `npm test` runs a few.
 */
import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { crashScene, DISASTERS } from '../support/crash-scene.ts';

const counts = { power: Number(process.argv[2] ?? 100), kill: Number(process.argv[3] ?? 200) };
const seed = Number(process.argv[4] ?? Date.now() % 1_000_000);
const print = (line: string) => process.stdout.write(`${line}\n`);
print(`seed ${seed}`);
for (const disaster of DISASTERS) {
  if (counts[disaster] === 0) continue;
  await using scene = await crashScene(disaster, seed);
  try {
    for (let number = 1; number <= counts[disaster]; number++) {
      const began = performance.now();
      const did = await scene.rounds.once();
      print(`${disaster} ${number}: ${did} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
    }
    const { rounds, receipts, exports, recovered } = scene.rounds.total;
    print(
      `${disaster}: ${rounds} rounds with seed ${seed}; ${receipts} receipts held, ${exports} generations read block by block; ${recovered} starts from the head, and said so`,
    );
  } catch (error) {
    print(`FAILED with seed ${seed}`);
    print(inspect(error, { depth: 4 }));
    const log = join(tmpdir(), `crashes-${seed}.log`);
    writeFileSync(log, scene.berth.output);
    print(`what the installation has printed is in ${log}`);
    process.exitCode = 1;
    break;
  }
}
