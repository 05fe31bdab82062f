/** examples/ci-runner as its page says: a push runs the check, a push wakes the runner, a failure is noted. */
import assert from 'node:assert/strict';
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { ExampleShell } from '../support/example-shell.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';

/** Counts its runs in the home folder. */
const CHECK = `#!/bin/sh
echo "checked by $(id -un)"
echo x >> ~/runs && wc -l < ~/runs
`;

describe('a CI runner that sleeps', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  const shell = new ExampleShell();
  const project = join(shell.folder, 'project');
  const server = join(shell.folder, 'project.git');

  /** Commits the check and pushes. Returns what the push printed. */
  const push = async (check: string) => {
    const write = `mkdir -p .ci && cat > .ci/run <<'CHECK'\n${check}CHECK\n`;
    await shell.done(project, `${write}chmod +x .ci/run && git add . && git commit -q -m 'A check'`);
    const { code, err } = await shell.run(project, 'git push -q');
    assert.equal(code, 0, err);
    return err.replaceAll(/^remote: (.*?) *$/gm, '$1');
  };
  const note = () => shell.done(server, 'git log -1 --format=%N --show-notes=ci --branches');

  before(async () => {
    berth = await borrowInstallation();
    await shell.login(berth, 'instances:read instances:write vm:read vm:write api_keys:write');
    const url = await shell.done(shell.folder, shell.example('ci-runner/setup'));
    await shell.done(
      shell.folder,
      `git init -q --bare -b main project.git
       git -C project.git config ci.url ${url.trim()}
       git -C project.git config ci.key "$(berth api-key create ci-hook --scope vm:read -q)"
       git clone -q project.git 2> /dev/null`,
    );
    cpSync(shell.example('ci-runner/post-receive'), join(server, 'hooks', 'post-receive'));
  });
  after(returnInstallation);

  test('a push runs the check, not as root, and prints its output', async () => {
    const printed = await push(CHECK);
    assert.match(printed, /^ci: refs\/heads\/main at [0-9a-f]+\nchecked by ci\n1\nci: exit 0$/m);
    assert.equal(await note(), 'ci: exit 0\n\n');
  });

  test('a push wakes the runner; what the last job left is there; a failure is noted', async () => {
    await shell.done(shell.folder, 'berth stop ci');
    const printed = await push(`${CHECK}exit 7\n`);
    assert.match(printed, /^checked by ci\n2\nci: exit 7$/m);
    assert.equal(await note(), 'ci: exit 7\n\n');
  });

  test('without the key no job runs', async () => {
    await shell.done(server, 'git config ci.key bk_wrong');
    assert.match(await push(`${CHECK}# changed\n`), /"code":"UNAUTHENTICATED"/);
    assert.equal(await note(), 'ci: no result\n\n');
    assert.equal(
      await shell.done(shell.folder, 'berth exec ci -- wc -l < /dev/null /srv/ci/home/runs'),
      '2 /srv/ci/home/runs\n',
    );
  });
});
