/** Verification by the client, of what the specification's own signer has signed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { verifyWebhook, WebhookVerificationError } from '../../client/src/berth.ts';
import { BODY, newSecret, signed, webhookVectors } from '../support/webhook-vectors.ts';

describe('a webhook is verified', () => {
  for (const { does, secrets, headers, body, is_genuine } of webhookVectors()) {
    test(`${is_genuine ? 'accepted' : 'refused'}: ${does}`, async () => {
      const verifying = verifyWebhook(secrets, headers, body);
      if (is_genuine) assert.equal((await verifying).data.name, 'wéb');
      else await assert.rejects(verifying, WebhookVerificationError);
    });
  }
});

test('a message is accepted with headers as an object or as Headers, as text and as bytes', async () => {
  const secret = newSecret();
  for (const headers of [signed([secret]), new Headers(signed([secret]))]) {
    for (const given of [BODY, new TextEncoder().encode(BODY)]) {
      const message = await verifyWebhook(secret, headers, given);
      assert.deepEqual([message.id, message.type, message.data.name], ['evt_1', 'vm.started', 'wéb']);
    }
  }
});
