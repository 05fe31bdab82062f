/** Verification by the client, of what the specification's own signer has signed. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { verifyWebhook, WebhookVerificationError } from '../../client/src/berth.ts';

const newSecret = () => `whsec_${randomBytes(32).toString('base64')}`;
const secret = newSecret();
const body = '{"type":"vm.started","timestamp":"2026-01-01T00:00:00.000Z","data":{"name":"wéb"}}';
const seconds = () => Math.floor(Date.now() / 1_000);

function signed(by: readonly string[], text = body, at = seconds()): Record<string, string> {
  return {
    'webhook-id': 'evt_1',
    'webhook-timestamp': String(at),
    'webhook-signature': by
      .map((each) => new Webhook(each).sign('evt_1', new Date(at * 1_000), text))
      .join(' '),
  };
}
const refused = (work: Promise<unknown>) => assert.rejects(work, WebhookVerificationError);

test('a genuine message is accepted, with headers as an object or as Headers, as text and as bytes', async () => {
  for (const headers of [signed([secret]), new Headers(signed([secret]))]) {
    for (const given of [body, new TextEncoder().encode(body)]) {
      const message = await verifyWebhook(secret, headers, given);
      assert.deepEqual([message.id, message.type, message.data.name], ['evt_1', 'vm.started', 'wéb']);
    }
  }
});

test('during a rotation of the secret, sender and receiver may each know both secrets', async () => {
  const next = newSecret();
  await verifyWebhook(next, signed([secret, next]), body);
  await verifyWebhook([secret, next], signed([next]), body);
});

test('a message with another secret, a changed byte, id or time, an old or future time, or a missing header is refused', async () => {
  const headers = signed([secret]);
  await refused(verifyWebhook(newSecret(), headers, body));
  await refused(verifyWebhook(secret, headers, body.replace('started', 'stopped')));
  await refused(verifyWebhook(secret, { ...headers, 'webhook-id': 'evt_2' }, body));
  await refused(verifyWebhook(secret, { ...headers, 'webhook-timestamp': String(seconds() + 1) }, body));
  await refused(verifyWebhook(secret, { ...headers, 'webhook-timestamp': 'soon' }, body));
  for (const age of [-301, 302])
    await refused(verifyWebhook(secret, signed([secret], body, seconds() + age), body));
  for (const name of Object.keys(headers)) {
    const rest = Object.fromEntries(Object.entries(headers).filter(([each]) => each !== name));
    await refused(verifyWebhook(secret, rest, body));
  }
  for (const odd of ['', 'v1', 'v1,', 'v1,%%%', `v2,${headers['webhook-signature']?.slice(3)}`]) {
    await refused(verifyWebhook(secret, { ...headers, 'webhook-signature': odd }, body));
  }
});
