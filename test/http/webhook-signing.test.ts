/** Signatures, verified by the package of Standard Webhooks, and bodies. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { signature, signingKey } from '../../src/control-plane/webhooks/attempt.ts';
import { apiForFile } from '../support/api.ts';
import {
  deliveriesOf,
  type Got,
  happen,
  makeWebhook,
  sendWebhooks,
  startRecorder,
} from '../support/webhooks.ts';

const api = await apiForFile();
sendWebhooks(api);

function verifies(secret: string, { body, headers }: Got): boolean {
  try {
    new Webhook(secret).verify(body, headers);
    return true;
  } catch {
    return false;
  }
}

describe('the signature', () => {
  test("is the specification's published one for its published message", () => {
    // https://github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md and the libraries' tests.
    const key = signingKey('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
    assert.equal(
      signature([key], 'msg_p5jXN8AQM9LWM0D4loKWxJek', 1614265330, '{"test": 2432232314}'),
      'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
    );
  });

  test('is verified by the standardwebhooks package, and is not that of another secret, body, id or time', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { secret } = await makeWebhook(api, owner, receiver.url);
    const id = await happen(api, owner.org_id, 1);
    const [got] = await receiver.has(1);
    assert.ok(got);
    assert.equal(got.id, id);
    assert.match(secret, /^whsec_[A-Za-z0-9+/]{43}=$/);
    assert.ok(verifies(secret, got));
    assert.ok(!verifies('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', got));
    assert.ok(!verifies(secret, { ...got, body: got.body.replace('"n":1', '"n":2') }));
    assert.ok(!verifies(secret, { ...got, headers: { ...got.headers, 'webhook-id': 'evt_other' } }));
    const later = String(Number(got.headers['webhook-timestamp']) + 1);
    assert.ok(!verifies(secret, { ...got, headers: { ...got.headers, 'webhook-timestamp': later } }));
  });

  test('the body is type, timestamp and data with org_id, actor and sequence', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url, { events: ['instance.created'] });
    const instance = await api.instance(owner);
    const [got] = await receiver.has(1);
    assert.ok(got);
    assert.equal(got.headers['content-type'], 'application/json');
    const { type, timestamp, data } = got.event;
    assert.equal(type, 'instance.created');
    assert.ok(Math.abs(Date.parse(timestamp) - Date.now()) < 60_000);
    assert.equal((data['instance'] as { id: string }).id, instance.id);
    assert.equal(data['org_id'], owner.org_id);
    assert.equal(data['actor'], owner.user_id);
    assert.equal(data['sequence'], 1);
    const [delivery] = await deliveriesOf(api, owner, webhook);
    assert.equal(delivery?.event_id, got.id);
  });
});

describe('a rotation', () => {
  test('signs with both secrets until the grace period ends, then with the new one only', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { id, secret: before } = await makeWebhook(api, owner, receiver.url);
    const rotate = `/v1/webhooks/${id}/rotate-secret`;
    const { body } = await api.as(owner).post<{ secret: string }>(rotate, { grace_seconds: 3_600 });
    await happen(api, owner.org_id, 1);
    const [overlapping] = await receiver.has(1);
    assert.ok(overlapping && verifies(before, overlapping) && verifies(body.secret, overlapping));
    assert.equal(overlapping.headers['webhook-signature']?.split(' ').length, 2);
    await api.db
      .updateTable('webhooks')
      .set({ previous_expires_at: new Date(Date.now() - 1_000) })
      .where('id', '=', id)
      .execute();
    await happen(api, owner.org_id, 2);
    const [, after] = await receiver.has(2);
    assert.ok(after && !verifies(before, after) && verifies(body.secret, after));
  });

  test('without a grace period ends the present secret at once, and a second rotation ends the first secret', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { id, secret: first } = await makeWebhook(api, owner, receiver.url);
    const rotate = `/v1/webhooks/${id}/rotate-secret`;
    const second = (await api.as(owner).post<{ secret: string }>(rotate)).body.secret;
    const third = (await api.as(owner).post<{ secret: string }>(rotate)).body.secret;
    await happen(api, owner.org_id, 1);
    const [twice] = await receiver.has(1);
    assert.ok(twice && !verifies(first, twice) && verifies(second, twice) && verifies(third, twice));
    const fourth = (await api.as(owner).post<{ secret: string }>(rotate, { grace_seconds: 0 })).body.secret;
    await happen(api, owner.org_id, 2);
    const [, at_once] = await receiver.has(2);
    assert.ok(at_once && !verifies(third, at_once) && verifies(fourth, at_once));
  });
});
