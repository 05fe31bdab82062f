/** examples/agent-sandbox as its page says: three ideas on forks, the good one taken over, a rollback. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { ExampleShell } from '../support/example-shell.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';

const PACKAGE = join(import.meta.dirname, '..', '..', 'python', 'src');

describe("an agent's sandbox", { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  const shell = new ExampleShell();

  before(async () => {
    berth = await borrowInstallation();
    await shell.login(berth, 'instances:read instances:write vm:read vm:write');
    shell.env['PYTHONPATH'] = PACKAGE;
    shell.env['PYTHONDONTWRITEBYTECODE'] = '1';
  });
  after(returnInstallation);

  test('the agent keeps the idea that passes, survives the one that destroys, and rolls back', async () => {
    const printed = await shell.done(shell.folder, `python3 ${shell.example('agent-sandbox/agent.py')}`);
    const lines = printed.trimEnd().split('\n');
    assert.equal(lines[0], 'at first: add.sh 2 3 is not 5');
    const tries = lines.slice(1, 4).sort();
    assert.match(tries[0] ?? '', /^try 1: 'rm -rf .*': $/);
    assert.match(tries[1] ?? '', /^try 2: .*: add\.sh 2 3 is not 5$/);
    assert.match(tries[2] ?? '', /^try 3: .*: passed$/);
    assert.match(lines[4] ?? '', /^taken over: .*: passed$/);
    assert.equal(lines[5], 'after a bad step: ');
    assert.match(lines[6] ?? '', /^rolled back to generation \d+: passed$/);
    assert.equal(lines.length, 7);
    assert.equal(await shell.done(shell.folder, 'berth ls -q'), 'agent\n');
  });
});
