/** What each client does when the way to the server is bad: before it a small proxy that fails as it is told to. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile, newName } from '../support/api.ts';
import { FailingProxy, type Fate } from '../support/failing-proxy.ts';
import { makeKey } from '../support/people.ts';
import { clientsWith, pythonClient } from '../support/python-client.ts';
import type { Call, Outcome } from '../support/run-calls.ts';

const api = await apiForFile();
const python = await pythonClient();
const proxy = await FailingProxy.before(api.origin);

const IMAGES: Call = { does: 'lists images', operation: 'list_images' };
const create = (name: string): Call => ({
  does: 'creates an instance',
  verb: 'instances.create',
  arguments: [{ name }],
});

for (const { name: client, run } of clientsWith(python)) {
  describe(client, async () => {
    const who = await api.person();
    const { key } = await makeKey(api.db, who, '*');
    const outcomeOf = async (call: Call, fates: readonly Fate[], given = {}): Promise<Outcome> => {
      proxy.reset(fates);
      const [outcome] = await run([call], { url: proxy.url, key }, given);
      assert.ok(outcome);
      return outcome;
    };

    test('a create whose answers are lost is repeated with one Idempotency-Key, and creates one instance', async () => {
      const { gave } = await outcomeOf(create('one'), ['lost', 'lost', 'refused']);
      assert.equal(proxy.seen.length, 4);
      assert.equal(new Set(proxy.seen.map((each) => each.key)).size, 1);
      assert.ok(proxy.seen[0]?.key);
      const { body } = await api.as(who).get<{ data: { id: string }[] }>('/v1/instances');
      assert.deepEqual(
        body.data.map(({ id }) => id),
        [(gave as { id: string }).id],
      );
    });

    test('503 and 429 are retried', async () => {
      const { gave } = await outcomeOf(IMAGES, [
        { status: 503, code: 'UNAVAILABLE', retry_after: '0' },
        { status: 429, code: 'RATE_LIMITED', retry_after: '0' },
      ]);
      assert.ok(gave);
      assert.equal(proxy.seen.length, 3);
    });

    for (const fate of [
      { status: 429, code: 'QUOTA_EXCEEDED' },
      { status: 409, code: 'CONFLICT' },
      { status: 503, code: 'UNAVAILABLE', retry_after: '3600' },
    ]) {
      test(`${fate.code}${fate.retry_after ? ' with a long Retry-After' : ''} is not retried`, async () => {
        const { failed } = await outcomeOf(create(newName()), [fate]);
        const { status, code } = fate;
        assert.partialDeepStrictEqual(failed, { error: 'BerthError', status, code, has_request_id: true });
        assert.equal(failed?.['retry_after_seconds'], fate.retry_after === undefined ? null : 3600);
        assert.equal(proxy.seen.length, 1);
      });
    }

    test('a request that is not safe to repeat is sent once', async () => {
      const { id } = await api.instance(who);
      const call = { does: '', verb: 'instances.change', arguments: ['$id', { labels: { a: 'b' } }] };
      const { failed } = await outcomeOf(call, ['lost'], { id });
      assert.equal(failed?.['error'], 'BerthConnectionError');
      assert.equal(proxy.seen.length, 1);
    });

    test('after four retries the failure is thrown', async () => {
      const { failed } = await outcomeOf(IMAGES, Array<Fate>(9).fill('refused'));
      assert.equal(failed?.['error'], 'BerthConnectionError');
      assert.equal(proxy.seen.length, 5);
    });

    test('what is in a path cannot leave it', async () => {
      const elsewhere = { does: '', operation: 'get_instance', path: { id: '../../nothing' } };
      const { failed } = await outcomeOf(elsewhere, []);
      assert.equal(failed?.['error'], 'BerthError');
      assert.ok(proxy.seen[0]?.url.endsWith('/..%2F..%2Fnothing'), proxy.seen[0]?.url);
    });

    test('a value that URLs remove from a path, or none, is refused before it is sent', async () => {
      for (const id of ['.', '..', '']) {
        const { failed } = await outcomeOf({ does: '', operation: 'get_instance', path: { id } }, []);
        assert.equal(failed?.['error'], 'TypeError', JSON.stringify(failed));
        assert.match(String(failed?.['message']), /must be an id or a name/);
      }
      const elsewhere = { does: '', verb: 'instances.get', arguments: ['..'] };
      assert.equal((await outcomeOf(elsewhere, [])).failed?.['error'], 'TypeError');
      assert.equal(proxy.seen.length, 0);
    });

    test('a wrong credential is UNAUTHENTICATED', async () => {
      const [outcome] = await run([IMAGES], { url: api.origin, key: 'berth_live_wrong' });
      assert.partialDeepStrictEqual(outcome?.failed, { status: 401, code: 'UNAUTHENTICATED' });
    });

    test('a server that is not there is a BerthConnectionError', async () => {
      const [outcome] = await run([create('nowhere')], { url: 'http://127.0.0.1:9', key });
      assert.equal(outcome?.failed?.['error'], 'BerthConnectionError');
    });
  });
}
