/**
 * Kills every process that an event passes on its way to a receiver: no event is lost, and an event that is sent twice
 * has the same id and the same bytes.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { DeliveryLab } from '../support/delivery-lab.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const EVENTS = process.env['BERTH_TEST_FAULTS'] === 'all' ? 10_000 : 1_000;
const PATIENCE = { timeout_ms: 240_000, every_ms: 100 };

describe('webhooks and the death of', { timeout: 3_600_000 }, () => {
  let lab: DeliveryLab;
  let next = 0;

  before(async () => {
    lab = await DeliveryLab.start(2);
  });
  after(() => lab?.dispose());

  /** A new receiver, which gets the events of its test only. */
  async function receiver(name: string): Promise<void> {
    const url = await lab.startReceiver(name);
    const { data } = await lab.client.expect<{ data: { id: string }[] }>(200, 'GET', '/v1/webhooks');
    for (const { id } of data) await lab.client.expect(204, 'DELETE', `/v1/webhooks/${id}`);
    await lab.createWebhook(name, url);
  }

  /** A commit is retried when the database dies before it answers: then two events have the same `n`. */
  async function eventsOf(first: number, count: number): Promise<Set<string>> {
    const events = await lab.db
      .selectFrom('events')
      .select(['id', 'data'])
      .where('type', '=', 'member.added')
      .execute();
    const numbers = events.map(({ id, data }) => ({ id, n: (data as { n: number }).n }));
    return new Set(numbers.filter(({ n }) => n >= first && n < first + count).map(({ id }) => id));
  }

  async function allCome(name: string, first: number, count: number): Promise<void> {
    const written = await eventsOf(first, count);
    assert.ok(written.size >= count);
    const allHere = () => {
      const here = new Set(lab.received(name).map(({ id }) => id));
      return [...written].every((id) => here.has(id));
    };
    await until(`all of ${written.size} events have come`, allHere, PATIENCE);
    for (const [id, copies] of Map.groupBy(lab.received(name), (each) => each.id)) {
      assert.ok(written.has(id), `${id} has happened`);
      assert.equal(new Set(copies.map(({ body_hash }) => body_hash)).size, 1, `${id} has one body`);
    }
  }

  test('the control plane between a request and its record, and of the database as it restarts', async () => {
    await receiver('held');
    const [first, count] = [next, 50];
    next += count;
    lab.hold('held');
    await lab.happen(first, count);
    // It does not answer: no outcome is recorded.
    await until('some are sent', () => lab.received('held').length > 0);
    const sent = new Set(lab.received('held').map(({ id }) => id));
    await Promise.all([lab.killControlPlane(0), lab.killControlPlane(1)]);
    lab.answer('held');
    // The database may not be there yet.
    lab.killPostgres();
    await Promise.all([lab.startControlPlane(0), lab.startControlPlane(1)]);
    await allCome('held', first, count);
    const copies = Map.groupBy(lab.received('held'), ({ id }) => id);
    for (const id of sent) assert.ok((copies.get(id)?.length ?? 0) >= 2, `${id} is sent again, with its id`);
  });

  test('control planes, the database and the receiver, while events arrive', {
    ...THOROUGH,
    timeout: 2_400_000,
  }, async (t) => {
    await receiver('busy');
    const [first, count] = [next, EVENTS + 50];
    next += count;
    const writing = lab.happen(first, EVENTS);
    const some = (share: number) =>
      until(`${share} of the events have come`, () => lab.received('busy').length >= count * share, PATIENCE);
    await some(0.05);
    await lab.killControlPlane(0);
    await some(0.15);
    lab.killPostgres();
    await some(0.3);
    await lab.startControlPlane(0);
    await lab.killControlPlane(1);
    await some(0.45);
    await lab.killReceiver('busy');
    // These find no receiver.
    await lab.happen(first + EVENTS, 50);
    await until('some are tried in vain', async () => {
      const failed = lab.db
        .selectFrom('webhook_attempts')
        .select('number')
        .where('status', 'is', null)
        .limit(1);
      return (await failed.execute()).length > 0;
    });
    await lab.startReceiver('busy');
    await lab.startControlPlane(1);
    await some(0.6);
    lab.killPostgres();
    await lab.killControlPlane(0);
    await lab.startControlPlane(0);
    await writing;
    await allCome('busy', first, count);
    const received = lab.received('busy').length;
    t.diagnostic(`${count} events, ${received - count} came twice`);
  });
});
