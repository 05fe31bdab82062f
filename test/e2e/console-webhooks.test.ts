/** Webhooks in the console: a delivery's event, request and answers; redelivery, replay, a new secret. No guests. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';
import { dialogFindings } from '../support/dialogs.ts';
import { pageFindings } from '../support/page-findings.ts';
import { makeWebhook, sendWebhooks, startRecorder } from '../support/webhooks.ts';

describe('webhooks in the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile();
  sendWebhooks(api);
  after(() => browser.assertQuiet());

  test('a delivery shows its instance, its request and every answer, and is sent again', async () => {
    const { who, page, dialog, button, leave } = await visit();
    const receiver = await startRecorder();
    // No second attempt by itself, however long the page takes.
    const busy = { status: 503, body: 'busy', headers: { 'retry-after': '3600' } };
    receiver.reply = (_, nth) => (nth === 1 ? busy : { status: 200, body: 'taken' });
    const webhook = await makeWebhook(api, who, receiver.url, { name: 'bot' });
    const { name } = await api.instance(who);
    const [got] = await receiver.has(1);
    await page.goto(`/webhooks/${webhook.id}`);
    const row = page.getByRole('row').filter({ hasText: 'instance.created' }).filter({ hasText: name });
    await row.filter({ hasText: 'pending' }).filter({ hasText: '503' }).waitFor();
    const details = button(`Details of instance.created ${name}`);
    await details.click();
    await dialog().getByText(`webhook-id: ${got?.id}`).waitFor();
    await dialog().getByText(`"name": "${name}"`).first().waitFor();
    await dialog().getByText('busy').waitFor();
    await dialog().getByRole('button', { name: 'Redeliver' }).click();
    await dialog().getByText('taken').waitFor();
    await dialog().getByText('busy').waitFor();
    assert.equal((await receiver.has(2))[1]?.id, got?.id);
    assert.deepEqual(await dialogFindings(page, details), []);
    await row.filter({ hasText: 'delivered' }).filter({ hasText: '2 attempts' }).waitFor();
    await page.getByRole('combobox', { name: 'Status' }).selectOption('failed');
    await page.getByRole('heading', { name: 'No failed deliveries' }).waitFor();
    await leave();
  });

  test('events are replayed, and the dialogs and the page are usable by everybody', async () => {
    const { who, page, dialog, button, leave } = await visit();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, who, receiver.url, { name: 'bot' });
    await api.instance(who);
    await receiver.has(1);
    const path = `/webhooks/${webhook.id}`;
    await page.goto(path);
    await button('Replay').click();
    assert.equal(await dialog().getByLabel('Events of').inputValue(), '24');
    await dialog().getByRole('button', { name: 'Replay' }).click();
    await page.getByText('Sending 1 event again.').waitFor();
    await receiver.has(2);
    for (const name of ['Replay', 'Edit', 'Rotate secret', 'Delete']) {
      await button(name).click();
      await dialog().waitFor();
      assert.deepEqual(await dialogFindings(page, button(name)), [], name);
    }
    assert.deepEqual(await pageFindings(page, new URL(page.url()).origin, path), []);
    await leave();
  });
});
