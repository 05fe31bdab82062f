/** `npm run test:long` runs each line of bin/tests-in-turn.txt on some day, and says which. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

const PROJECT = join(import.meta.dirname, '..');
const DAY_S = 86_400;
const [choose] =
  /^choose_in_turn\(\) \{\n[\s\S]*?\n\}\n/m.exec(readFileSync(join(PROJECT, 'bin', 'test.sh'), 'utf8')) ?? [];
const lines = readFileSync(join(PROJECT, 'bin', 'tests-in-turn.txt'), 'utf8')
  .trimEnd()
  .split('\n')
  .filter((line) => !line.startsWith('#'));
const folder = mkdtempSync(join(tmpdir(), 'berth-in-turn-'));
after(() => rmSync(folder, { recursive: true }));

/** What it prints, and the variable that it sets. `git`: a script in place of git. */
function chosen(git: string): string {
  const path = join(folder, 'git');
  writeFileSync(path, `#!/bin/sh\n${git}\n`);
  chmodSync(path, 0o755);
  return execFileSync('sh', ['-euc', `${choose}choose_in_turn\necho "$BERTH_TEST_FAULTS"`], {
    cwd: PROJECT,
    encoding: 'utf8',
    env: { PATH: `${folder}:/usr/bin:/bin` },
  });
}

const said = (number: number) =>
  `== tests in turn, ${number} of ${lines.length} by the date of the commit: ${lines[number - 1]}\n${lines[number - 1]}\n`;

test('commits of successive days run each line once, and say which', () => {
  const first = 20_000 - (20_000 % lines.length);
  lines.forEach((_, day) => {
    assert.equal(chosen(`echo ${(first + day) * DAY_S + 5}`), said(day + 1));
  });
});

test('without a history the first line runs', () => assert.equal(chosen('exit 128'), said(1)));
