/**
 * Power cuts of chance: node test/fault/power-cuts.ts [CUTS [SEED]], 100 unless told. A line a cut and a sum; a failure tells
 * the seed that repeats its choices. `test/support/power-cuts.ts` says what a round is; a few are part of `npm test`.
 */
import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { cutInstallation } from '../support/cut-installation.ts';

const count = Number(process.argv[2] ?? 100);
const seed = Number(process.argv[3] ?? Date.now() % 1_000_000);
const print = (line: string) => process.stdout.write(`${line}\n`);
print(`seed ${seed}`);
await using scene = await cutInstallation(seed);
try {
  for (let number = 1; number <= count; number++) {
    const began = performance.now();
    const did = await scene.cuts.once();
    print(`${number}: ${did} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
  }
  const { cuts, receipts, exports, recovered } = scene.cuts.total;
  print(
    `${cuts} power cuts with seed ${seed}: ${receipts} receipts held, ${exports} generations read block by block; ${recovered} starts from the head, and said so`,
  );
} catch (error) {
  print(`FAILED with seed ${seed}`);
  print(inspect(error, { depth: 4 }));
  const log = join(tmpdir(), `power-cuts-${seed}.log`);
  writeFileSync(log, scene.berth.output);
  print(`what the installation has printed is in ${log}`);
  process.exitCode = 1;
}
