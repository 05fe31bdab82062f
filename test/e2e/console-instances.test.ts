/** Instances in the console: the list with its filters and selection, forks, and changes that need a stopped VM. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import type { InstanceOut } from '../support/api.ts';
import { accessibilityFindings, NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile, type Visit } from '../support/console-visit.ts';
import { makeGenerations } from '../support/generations.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeSshKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

/** For a look, when asked for: in both themes, and narrow. */
async function picture(page: Page, name: string): Promise<void> {
  const folder = process.env['BERTH_TEST_PICTURES'];
  if (folder === undefined) return;
  const wide = page.viewportSize();
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: join(folder, `${name}-${colorScheme}.png`) });
  }
  await page.emulateMedia({ colorScheme: 'light' });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.screenshot({ path: join(folder, `${name}-narrow.png`) });
  if (wide) await page.setViewportSize(wide);
}

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, visit }: ConsoleForFile = await consoleForFile();

  const names = async ({ page }: Visit) => page.locator('.instances .row-name').allInnerTexts();
  const read = async ({ who }: Visit, id: string) =>
    (await api.as(who).get<InstanceOut>(`/v1/instances/${id}`)).body;
  const show = async ({ page }: Visit, name: string, part = '') => {
    await page.goto(`/instances/${name}${part}`);
    await page.locator('.instance-head [data-state]').waitFor();
  };

  test('searches, filters and sorts instances, and keeps the chosen columns', async () => {
    const visited = await visit();
    const { who, page, leave } = visited;
    const first = await api.instance(who, { name: 'alpha', cpus: 4, labels: { team: 'web' } });
    await api.instance(who, { name: 'beta', cpus: 1 });
    await instanceIn(api, who, 'running');
    await page.goto('/');
    await page.getByRole('link', { name: 'alpha' }).waitFor();
    assert.deepEqual((await names(visited)).slice(1), ['beta', 'alpha'], 'newest first');
    await page.getByRole('button', { name: 'CPUs' }).click();
    await page.getByRole('button', { name: 'CPUs' }).click();
    assert.equal((await names(visited))[0], 'alpha');
    assert.equal(await page.locator('th[aria-sort="descending"]').innerText(), 'CPUs↓');
    await page.getByRole('combobox', { name: 'State' }).selectOption('stopped');
    assert.deepEqual(await names(visited), ['alpha', 'beta']);
    await page.getByRole('combobox', { name: 'Label' }).selectOption('team=web');
    assert.deepEqual(await names(visited), ['alpha']);
    await page.getByRole('combobox', { name: 'Label' }).selectOption('');
    await page.getByLabel('Search').fill('bet');
    assert.deepEqual(await names(visited), ['beta']);
    await page.getByLabel('Search').fill('');
    await page.setViewportSize({ width: 390, height: 844 });
    await page.getByRole('combobox', { name: 'Sort' }).selectOption('Name');
    assert.deepEqual(await names(visited), ['alpha', 'beta']);
    assert.deepEqual(await accessibilityFindings(page), []);
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.getByText('Columns', { exact: true }).click();
    await page.getByLabel('SSH address').check();
    await picture(page, 'list');
    assert.deepEqual(await accessibilityFindings(page), []);
    await page.reload();
    await page.getByText(`${first.ssh.host}:${first.ssh.port}`).waitFor();
    await leave();
  });

  test('pages a long list', async () => {
    const visited = await visit();
    const { who, page, leave } = visited;
    for (let n = 0; n < 55; n++) await api.instance(who);
    await page.goto('/');
    const more = page.getByRole('button', { name: 'Show more: 50 of 55 shown' });
    await more.waitFor();
    assert.equal((await names(visited)).length, 50);
    await more.click();
    assert.equal((await names(visited)).length, 55);
    await leave();
  });

  test('stops several instances after one question, tells the outcome of each, and deletes them by a typed word', async () => {
    const visited = await visit();
    const { who, page, button, dialog, leave } = visited;
    const [on, gone] = [await instanceIn(api, who, 'running'), await instanceIn(api, who, 'running')];
    const off = await api.instance(who);
    await page.goto('/');
    await page.getByLabel('Select all shown instances').check();
    await page.getByText('3 selected').waitFor();
    await page.route(`**/v1/instances/${gone.id}/vm`, (route) =>
      route.fulfill({
        status: 503,
        json: { error: { code: 'UNAVAILABLE', message: 'No room.', request_id: 'req_1' } },
      }),
    );
    await button('Stop the selected instances').click();
    const row = (name: string) => dialog().locator('li').filter({ hasText: name });
    await row(off.name).getByText('already stopped').waitFor();
    await picture(page, 'bulk');
    assert.deepEqual(await accessibilityFindings(page), []);
    await dialog().getByRole('button', { name: 'Stop', exact: true }).click();
    await row(on.name).getByText('accepted').waitFor();
    await row(gone.name).getByText('No room.').waitFor();
    assert.deepEqual(
      [(await read(visited, on.id)).vm.state, (await read(visited, gone.id)).vm.state],
      ['stopping', 'running'],
    );
    await page.unrouteAll();
    await button('Try 1 again').click();
    await row(gone.name).getByText('accepted').waitFor();
    await button('Close').last().click();
    await button('Delete the selected instances').click();
    const confirm = dialog().getByRole('button', { name: 'Delete', exact: true });
    assert.ok(await confirm.isDisabled());
    await dialog().getByLabel('Type “delete 3” to confirm').fill('delete 3');
    await confirm.click();
    await row(on.name).getByText('accepted').waitFor();
    assert.deepEqual((await read(visited, on.id)).deleting, true);
    await leave();
  });

  test('shows the outcome of a deletion also when it empties the list, until the user closes it', async () => {
    const { who, page, button, heading, dialog, leave } = await visit();
    const made = [await api.instance(who), await instanceIn(api, who, 'running')];
    await page.goto('/');
    await page.getByLabel('Select all shown instances').check();
    await button('Delete the selected instances').click();
    await dialog().getByLabel('Type “delete 2” to confirm').fill('delete 2');
    await dialog().getByRole('button', { name: 'Delete', exact: true }).click();
    const row = (name: string) => dialog().locator('li').filter({ hasText: name });
    for (const { name } of made) await row(name).getByText('accepted').waitFor();
    await api.db.deleteFrom('instances').where('org_id', '=', who.org_id).execute();
    await heading('No instances yet').waitFor();
    for (const { name } of made) await row(name).getByText('deleted', { exact: true }).waitFor();
    await button('Close').last().click();
    assert.equal(await dialog().count(), 0);
    await leave();
  });

  test('forks a running instance after a flush, unless the user chooses not to', async () => {
    const visited = await visit();
    const { who, page, button, dialog, heading, leave } = visited;
    const { id, name } = await instanceIn(api, who, 'running');
    await api.agent.commit(id, 1);
    await api.agent.heartbeat([{ instance_id: id, dirty_bytes: 12 * 2 ** 20 }]);
    await show(visited, name);
    await page.getByText('12 MiB unsaved').waitFor();
    await button('Fork').click();
    await dialog()
      .getByText(
        /Saved .*, as generation 1\. Without a flush the fork lacks what .* since then, at least 12 MiB\./,
      )
      .waitFor();
    await picture(page, 'fork');
    assert.ok(await dialog().getByLabel('Flush first').isChecked());
    await dialog().getByLabel('Name').fill('whole');
    await dialog().getByRole('button', { name: 'Fork', exact: true }).click();
    const flush_id = await api.agent.askedToFlush(id);
    await api.agent.commit(id, 2);
    await api.agent.endFlush(flush_id);
    await heading('whole').waitFor();
    await page.getByText(`${name}, generation 2`).waitFor();
    await raiseNotificationsOfEvents(api.db);
    await page.goto(`/instances/${name}/activity`);
    await page.getByText(`forked whole from generation 2 of ${name}`).waitFor();
    await api.agent.heartbeat([{ instance_id: id, dirty_bytes: 0 }]);
    await show(visited, name);
    await page.getByText('all saved').waitFor();
    await button('Fork').click();
    await dialog().getByText(`lacks what ${name} has written since then.`).waitFor();
    await dialog().getByRole('button', { name: 'Cancel' }).click();
    await api.agent.heartbeat([{ instance_id: id, dirty_bytes: 64 * 1024 }]);
    await page.getByText('64 KiB is one block').waitFor();
    await api.agent.heartbeat([{ instance_id: id, dirty_bytes: 2 ** 20 }]);
    await show(visited, name);
    await button('Fork').click();
    await dialog().getByLabel('Name').fill('older');
    await dialog().getByLabel('Flush first').uncheck();
    await dialog().getByRole('button', { name: 'Fork', exact: true }).click();
    await heading('older').waitFor();
    await page.getByText(`${name}, generation 2, without at least 1 MiB unsaved`).waitFor();
    await leave();
  });

  test('shows what made each generation, and restores one of a running VM by stopping and starting it', async () => {
    const visited = await visit();
    const { who, page, button, dialog, leave } = visited;
    const { id, name } = await instanceIn(api, who, 'running');
    await api.agent.commit(id, 1);
    await api.agent.commit(id, 2);
    await show(visited, name, '/generations');
    await page.getByText('automatic flush · 4 KiB saved').first().waitFor();
    await button('Restore generation 1').click();
    await dialog().getByText(`${name} is running. It is stopped first`).waitFor();
    await picture(page, 'restore');
    assert.deepEqual(await accessibilityFindings(page), []);
    await button('Stop and restore').click();
    await api.agent.assigned(id, 'it is to stop', ({ desired }) => desired === 'stopped');
    await api.agent.stopped(id);
    await api.agent.assigned(id, 'it starts again', ({ desired }) => desired === 'running');
    await api.agent.ready(id);
    await raiseNotificationsOfEvents(api.db);
    await page.locator('.timeline li.head').filter({ hasText: 'restored from 1' }).waitFor();
    await picture(page, 'generations');
    await leave();
  });

  test('resizes a running VM after one question', async () => {
    const visited = await visit();
    const { who, page, button, dialog, leave } = visited;
    const { id, name } = await instanceIn(api, who, 'running');
    await show(visited, name, '/settings');
    await page.getByLabel('Memory, MiB').fill('1024');
    await picture(page, 'settings');
    await button('Save').click();
    await dialog().getByText(`${name} is running. It is stopped first`).waitFor();
    await dialog().getByRole('button', { name: 'Cancel' }).click();
    assert.equal(await page.getByLabel('Memory, MiB').inputValue(), '1024', 'the typed size stays');
    assert.equal((await read(visited, id)).memory_mib, 512);
    await button('Save').click();
    await button('Stop and resize').click();
    await api.agent.assigned(id, 'it is to stop', ({ desired }) => desired === 'stopped');
    await api.agent.stopped(id);
    await api.agent.assigned(id, 'it starts again', ({ desired }) => desired === 'running');
    await page.getByText(`Resized ${name}:`).waitFor();
    const { memory_mib, vm } = await read(visited, id);
    assert.deepEqual([memory_mib, vm.state], [1024, 'starting']);
    await leave();
  });

  test('grows the disk of a running VM without a question, and restarts it after a failure if told to', async () => {
    const visited = await visit();
    const { who, page, button, leave } = visited;
    const { id, name } = await instanceIn(api, who, 'running');
    await show(visited, name, '/settings');
    await page.getByLabel('Disk, GiB').fill('20');
    await page.getByRole('combobox', { name: 'Restart' }).selectOption('on_failure');
    await button('Save').click();
    const { spec } = await api.agent.assigned(id, 'it grows', ({ disk_grows }) => disk_grows);
    await api.agent.observe(id, { kind: 'disk_grown', disk_bytes: spec.disk_bytes });
    await page.getByText('Saved. The root file system has grown to 20 GiB.').waitFor();
    const { disk_gib, restart, vm } = await read(visited, id);
    assert.deepEqual([disk_gib, restart, vm.state], [20, 'on_failure', 'running']);
    await show(visited, name);
    await page.getByText('on failure', { exact: true }).waitFor();
    await leave();
  });

  test('names what a flush saved on its receipt', async () => {
    const visited = await visit();
    const { who, page, button, leave } = visited;
    const { id, name } = await instanceIn(api, who, 'running');
    await show(visited, name);
    await button('Flush').click();
    const flush_id = await api.agent.askedToFlush(id);
    await api.agent.commit(id, 1);
    await api.agent.endFlush(flush_id);
    await page.getByRole('heading', { name: 'Saved as generation 1' }).waitFor();
    await page.getByLabel('Name of this generation').fill('before-upgrade');
    await page.getByLabel('Pin: keep it').check();
    await picture(page, 'receipt');
    await button('Save').click();
    await page.getByText('Generation 1 is named before-upgrade, and pinned.').waitFor();
    await leave();
  });

  test('shows the SSH address of a VM that does not run, what a connection does, and Resume for a suspended one', async () => {
    const visited = await visit();
    const { who, page, button, leave } = visited;
    const { name, ssh, id } = await instanceIn(api, who, 'suspended');
    await makeGenerations(api.db, id, 1);
    await show(visited, name);
    await page.getByText(`ssh -p ${ssh.port} root@${ssh.host}`).waitFor();
    await page.getByText('The VM is suspended. Resume it to log in').waitFor();
    await page.getByText('all saved').waitFor();
    await button('Resume').waitFor();
    await picture(page, 'suspended');
    await api.as(who).patch(`/v1/instances/${id}`, { wake_on_connect: true });
    await raiseNotificationsOfEvents(api.db);
    await page
      .getByText('A connection, or a request to an HTTP port, starts it and waits until it runs.')
      .waitFor();
    assert.deepEqual(await accessibilityFindings(page), []);
    await leave();
  });

  test('keeps each action in its place whatever the state, and tells why it cannot be used', async () => {
    const visited = await visit();
    const { who, page, leave } = visited;
    const reasons: [Parameters<typeof instanceIn>[2], string][] = [
      ['stopped', 'Stop, Restart, Suspend and Flush need a running VM. Fork needs saved files'],
      ['starting', 'The VM is starting. Restart, Suspend and Flush need a running VM.'],
      ['running', 'The VM runs already.'],
      ['stopping', 'The VM is being stopped. Restart, Suspend and Flush need a running VM.'],
      ['suspended', 'Restart, Suspend and Flush need a running VM.'],
    ];
    const places = new Set<string>();
    for (const [state, reason] of reasons) {
      const { name } = await instanceIn(api, who, state);
      await show(visited, name);
      assert.ok((await page.locator('.actions-reason').innerText()).startsWith(reason), state);
      for (const width of [1280, 390]) {
        await page.setViewportSize({ width, height: 800 });
        const buttons = await page.locator('.instance-head .page-actions button').all();
        const boxes = await Promise.all(buttons.map((each) => each.boundingBox()));
        places.add(boxes.map((box) => `${box?.x} ${box?.y}`).join(', '));
      }
    }
    assert.equal(places.size, 2, [...places].join('\n'));
    await leave();
  });

  test('offers to replace a key set only once another is chosen', async () => {
    const visited = await visit();
    const { who, page, button, leave } = visited;
    await makeSshKey(api.db, who.user_id);
    const { name } = await api.instance(who);
    await show(visited, name, '/keys');
    await page.getByText('Nothing is changed yet.').waitFor();
    const replace = button('Replace the key set');
    assert.equal(await replace.getAttribute('aria-disabled'), 'true');
    await page.getByLabel('Only the keys chosen here').check();
    await page.getByRole('checkbox', { name: 'laptop' }).check();
    await replace.click();
    await page.getByText('Replaced the key set.').waitFor();
    await page.getByText('Nothing is changed yet.').waitFor();
    await page.getByRole('checkbox', { name: 'laptop' }).uncheck();
    await page.getByText('Nothing is changed yet.').waitFor({ state: 'detached' });
    await page.getByRole('checkbox', { name: 'laptop' }).check();
    await page.getByText('Nothing is changed yet.').waitFor();
    await leave();
  });

  test('says in plain words what a flush saved, and tells a role that cannot change generations so', async () => {
    const { who, leave } = await visit();
    const { name, id } = await api.instance(who);
    await makeGenerations(api.db, id, 2);
    await leave();
    const reader = await visit('/', { org_id: who.org_id, role: 'billing' });
    await show(reader, name, '/generations');
    const { page } = reader;
    await page.locator('.timeline-reason').getByText('Your role here, billing, cannot change').waitFor();
    await page.locator('.timeline li.head').getByText('complete files').waitFor();
    assert.equal(await reader.button('Restore generation 2').count(), 0, 'the disk has these files');
    assert.ok(await reader.button('Restore generation 1').isDisabled());
    await reader.leave();
  });
});
