/** A redelivery or a replay during the last attempt of a delivery: the failure of that attempt does not undo it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MAX_TRIES } from '../../src/control-plane/webhooks/attempt.ts';
import type { WebhookId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';
import { deliveriesOf, happen, makeWebhook, sendWebhooks, startRecorder } from '../support/webhooks.ts';

const api = await apiForFile();
sendWebhooks(api);

const WAYS: Readonly<Record<string, (who: Person, hook: string, delivery: string) => Promise<unknown>>> = {
  redelivery: (who, hook, delivery) =>
    api.as(who).post(`/v1/webhooks/${hook}/deliveries/${delivery}/redeliver`, {}),
  replay: (who, hook) =>
    api.as(who).post(`/v1/webhooks/${hook}/replay`, { since: new Date(Date.now() - 60_000).toISOString() }),
};

for (const [what, ask] of Object.entries(WAYS)) {
  test(`a ${what} during the last attempt is sent, although that attempt fails`, async () => {
    const owner = await api.person();
    const recorder = await startRecorder();
    const webhook = await makeWebhook(api, owner, recorder.url);
    const { promise: asked, resolve: release } = Promise.withResolvers<void>();
    recorder.reply = async (_, nth) => {
      if (nth === 2) await asked;
      return { status: nth <= 2 ? 500 : 204 };
    };
    await happen(api, owner.org_id, 1);
    const delivery = async () => (await deliveriesOf(api, owner, webhook))[0];
    await until('the first attempt has failed', async () => (await delivery())?.attempt_count === 1);
    await api.db
      .updateTable('webhook_deliveries')
      .set({ tries: MAX_TRIES - 1, next_attempt_at: new Date(Date.now() - 3_600_000) })
      .where('webhook_id', '=', webhook.id as WebhookId)
      .execute();
    await until('the last attempt is in flight', () => recorder.got.length >= 2);
    await ask(owner, webhook.id, (await delivery())?.id ?? '');
    release();
    await until('it is delivered', async () => (await delivery())?.status === 'delivered');
    assert.equal(recorder.got.length, 3);
  });
}
