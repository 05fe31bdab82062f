/** examples/preview-per-branch as its page says: two branches, an update, a request that wakes, the end. */
import assert from 'node:assert/strict';
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { ExampleShell } from '../support/example-shell.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';

describe('a preview of each branch', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  const shell = new ExampleShell();
  let site: string;
  const urls = { main: '', other: '' };

  const page = async (url: string) => {
    const { key_token } = shell;
    return shell.done(site, `curl -sS --fail-with-body -H 'Authorization: Bearer ${key_token}' ${url}/`);
  };

  before(async () => {
    berth = await borrowInstallation();
    await shell.login(berth, 'instances:read instances:write vm:read vm:write');
    site = join(shell.folder, 'site');
    cpSync(shell.example('preview-per-branch/site'), site, { recursive: true });
    cpSync(shell.example('preview-per-branch/preview'), join(site, 'preview'));
    await shell.done(site, "git init -q -b main && git add . && git commit -q -m 'A site'");
  });
  after(returnInstallation);

  test('the first preview is online at the URL that it prints, for those with access', async () => {
    urls.main = (await shell.done(site, './preview up')).trim();
    assert.equal(await page(urls.main), '<h1>Hello from main</h1>\n');
    assert.equal(await shell.done(site, `curl -sS -o /dev/null -w '%{http_code}' ${urls.main}/`), '401');
  });

  test('another branch gets its own; a new commit appears at the same URL', async () => {
    await shell.done(site, "git switch -q -c feature/Two && echo two > index.html && git commit -qam 'Two'");
    urls.other = (await shell.done(site, './preview up')).trim();
    assert.notEqual(urls.other, urls.main);
    assert.equal(await page(urls.other), 'two\n');
    await shell.done(site, "echo three > index.html && git commit -qam 'Three'");
    assert.equal((await shell.done(site, './preview up feature/Two')).trim(), urls.other);
    assert.equal(await page(urls.other), 'three\n');
    assert.equal(await page(urls.main), '<h1>Hello from main</h1>\n');
    const names = await shell.done(site, 'berth ls -q --label preview=site');
    assert.match(
      names,
      /^preview-(feature-two|main)-[0-9a-f]{8}\npreview-(feature-two|main)-[0-9a-f]{8}\n$/m,
    );
  });

  test('a request wakes a preview that sleeps', async () => {
    await shell.done(site, 'berth stop $(berth ls -q --label preview=site)');
    assert.equal(await page(urls.other), 'three\n');
  });

  test('a branch without preview.sh is refused and changes nothing; down deletes', async () => {
    await shell.done(site, "git rm -q preview.sh && git commit -qm 'No preview'");
    const refused = await shell.run(site, './preview up');
    assert.equal(refused.code, 1);
    assert.match(refused.err, /the branch has no executable preview\.sh/);
    assert.equal(await page(urls.other), 'three\n');
    await shell.done(site, './preview down feature/Two && ./preview down main');
    assert.equal(await shell.done(site, 'berth ls -q --label preview=site'), '');
  });
});
