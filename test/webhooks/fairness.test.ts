/**
 * Receivers that never answer, answer a byte at a time, or are gone, beside 200 good ones. A request may take ten minutes
 * here: a sender that waited for a bad receiver would exceed the test's patience.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { Outbound } from '../../src/control-plane/webhooks/outbound.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { apiForFile } from '../support/api.ts';
import { ownPort } from '../support/own-ports.ts';
import { startReceiver } from '../support/receivers.ts';
import { until } from '../support/waiting.ts';
import { happen, makeWebhook, sendWebhooks } from '../support/webhooks.ts';

const GOOD = 200;
const BAD_OF_EACH = 5;
const EVENTS = 4;

const outbound = new Outbound({
  allow_cidrs: [{ address: '127.0.0.1', prefix: 32 }],
  timeout_ms: 600_000,
});
const secrets = new Sealer(randomBytes(32), 'berth webhooks v1');
const api = await apiForFile({ context: { webhooks: { outbound, secrets } } });
after(() => outbound.close());
sendWebhooks(api);

test('200 good receivers get two waves of events while the bad ones hold their first requests', async () => {
  const got = new Map<string, number>();
  const good = await startReceiver((request, response) => {
    const path = request.url ?? '';
    got.set(path, (got.get(path) ?? 0) + 1);
    request.resume();
    response.writeHead(204).end();
  });
  const held = { silent: 0, dribbling: 0, ended: 0 };
  const silent = await startReceiver((request) => {
    held.silent += 1;
    request.socket.once('close', () => held.ended++);
  });
  const dribbling = await startReceiver((request, response) => {
    held.dribbling += 1;
    request.socket.once('close', () => held.ended++);
    response.writeHead(200);
    const timer = setInterval(() => response.write('.'), 1_000);
    response.once('close', () => clearInterval(timer));
  });
  const gone = `http://127.0.0.1:${await ownPort()}`;
  after(async () => {
    for (const each of [good, silent, dribbling]) await each.close();
  });

  const owners = [await api.person(), await api.person(), await api.person()] as const;
  const owner = (nth: number) => owners[nth % owners.length] ?? owners[0];
  for (let nth = 0; nth < BAD_OF_EACH; nth++) {
    for (const origin of [silent.origin, dribbling.origin, gone]) {
      await makeWebhook(api, owner(nth), `${origin}/${nth}`);
    }
  }
  for (let nth = 0; nth < GOOD; nth++) await makeWebhook(api, owner(nth), `${good.origin}/${nth}`);

  for (const wave of [1, 2]) {
    for (let n = 0; n < EVENTS; n++) for (const { org_id } of owners) await happen(api, org_id, n);
    const complete = () =>
      got.size === GOOD && [...got.values()].every((requests) => requests === wave * EVENTS);
    await until(`all good receivers have wave ${wave}`, complete, { timeout_ms: 120_000 });
    await until('the bad ones have their requests', () => held.silent > 0 && held.dribbling > 0);
    assert.equal(held.ended, 0, 'none of those has ended');
  }
});
