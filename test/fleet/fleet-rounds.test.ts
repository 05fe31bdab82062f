/** A few rounds of faults against a whole fleet, with a seed whose first ones differ. `npm run fleet-rounds` runs any number. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CANNOT_BOOT_GUESTS } from '../support/installation.ts';
import { patroniMissing } from '../support/patroni.ts';

const PROGRAM = fileURLToPath(import.meta.resolve('./fleet-rounds.ts'));
const ROUNDS = 3;
/** A host gets an empty disk while a control plane is killed; PostgreSQL is restored to a copy; the store answers wrongly. */
const SEED = 24_521;
const missing = patroniMissing();

test('a fleet under load keeps its promises when hosts, PostgreSQL and the store fail', {
  skip: CANNOT_BOOT_GUESTS || (missing ?? false),
  timeout: 1_800_000,
}, async (t) => {
  const words = [process.execPath, PROGRAM, '--rounds', String(ROUNDS), '--seed', String(SEED)];
  const child = spawn('setpriv', ['--pdeathsig', 'TERM', 'unshare', '--net', ...words], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.after(() => child.kill('SIGTERM'));
  const lines: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => {
    lines.push(line);
    t.diagnostic(line);
  });
  const [code] = await once(child, 'close');
  assert.equal(code, 0, lines.slice(-40).join('\n'));
  assert.match(lines.at(-1) ?? '', new RegExp(`${ROUNDS} rounds, .* no violation$`));
});
