/** Lists are newest first, complete and without duplicates during inserts, and a cursor is valid for its list only. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CursorSealer } from '../../src/control-plane/http/pagination.ts';
import { apiForFile } from '../support/api.ts';
import type { Client, Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { makeKey, makeSession, makeSshKey } from '../support/people.ts';

const api = await apiForFile();

interface Item {
  readonly id: string;
}
const LISTS = ['/v1/instances', '/v1/api-keys', '/v1/me/ssh-keys'] as const;
type List = (typeof LISTS)[number];

async function add(list: List, who: Awaited<ReturnType<typeof api.person>>): Promise<string> {
  switch (list) {
    case '/v1/instances':
      return (await api.instance(who)).id;
    case '/v1/api-keys':
      return (await makeKey(api.db, who, '*')).id;
    case '/v1/me/ssh-keys':
      return (await makeSshKey(api.db, who.user_id)).id;
  }
}

async function read(client: Client, path: string): Promise<Page<Item>> {
  const answer = await client.get<Page<Item>>(path);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}

for (const list of LISTS) {
  describe(`GET ${list}`, () => {
    test('an empty list has no cursor', async () => {
      const who = await api.person();
      assert.deepEqual(await read(api.as(who), list), { data: [], next_cursor: null });
    });

    test('pages are newest first, complete, without duplicates, and stable during inserts', async () => {
      const who = await api.person();
      const made: string[] = [];
      for (let i = 0; i < 7; i++) made.push(await add(list, who));
      const seen: string[] = [];
      let cursor: string | null = null;
      let pages = 0;
      do {
        const page: Page<Item> = await read(
          api.as(who),
          `${list}?limit=3${cursor === null ? '' : `&cursor=${cursor}`}`,
        );
        seen.push(...page.data.map((item) => item.id));
        cursor = page.next_cursor;
        pages += 1;
        await add(list, who);
      } while (cursor !== null);
      assert.deepEqual(seen, made.toSorted().toReversed());
      assert.equal(pages, 3);
    });

    test('a page that holds the whole list has no cursor', async () => {
      const who = await api.person();
      for (let i = 0; i < 3; i++) await add(list, who);
      assert.equal((await read(api.as(who), `${list}?limit=3`)).next_cursor, null);
      assert.notEqual((await read(api.as(who), `${list}?limit=2`)).next_cursor, null);
    });

    test('the default limit is 50 and the maximum 200', async () => {
      const who = await api.person();
      if (list !== '/v1/instances') for (let i = 0; i < 51; i++) await add(list, who);
      assert.equal((await read(api.as(who), list)).data.length, list === '/v1/instances' ? 0 : 50);
      await read(api.as(who), `${list}?limit=200`);
      for (const limit of ['0', '201', '-1', '1.5', '1e2', 'x', '', '99999', '%20', '1&limit=2']) {
        assertError(await api.as(who).get(`${list}?limit=${limit}`), 'INVALID_REQUEST');
      }
    });

    test('a cursor is refused to others, in another organisation, for another list, changed, or expired', async () => {
      const who = await api.person();
      for (let i = 0; i < 2; i++) await add(list, who);
      const { next_cursor } = await read(api.as(who), `${list}?limit=1`);
      assert(next_cursor);
      const refused = async (client: Client, path: string, headers: Record<string, string> = {}) =>
        assertError(await client.get(path, { headers }), 'INVALID_REQUEST', /cursor/);
      const other_session = await makeSession(api.db, who.user_id);
      const colleague = await api.person({ org_id: who.org_id, role: 'admin' });
      for (const client of [api.as(other_session.session), api.as(colleague), api.as(await api.person())]) {
        await refused(client, `${list}?cursor=${next_cursor}`);
      }
      await api.db
        .insertInto('memberships')
        .values({ org_id: (await api.person()).org_id, user_id: who.user_id, role: 'owner' })
        .execute();
      for (const elsewhere of LISTS.filter((each) => each !== list)) {
        await refused(api.as(who), `${elsewhere}?cursor=${next_cursor}`);
      }
      const middle = Math.floor(next_cursor.length / 2);
      const changed = next_cursor[middle] === 'A' ? 'B' : 'A';
      for (const bad of [
        next_cursor.slice(0, middle) + changed + next_cursor.slice(middle + 1),
        next_cursor.slice(0, -4),
        'x',
        '%00',
      ]) {
        const answer = await api.as(who).get(`${list}?cursor=${bad}`);
        assertError(answer, 'INVALID_REQUEST');
      }
      await read(api.as(who), `${list}?cursor=${next_cursor}&limit=200`);
    });
  });
}

test('a cursor of a filtered list is refused with another filter', async () => {
  const who = await api.person();
  for (let i = 0; i < 2; i++) await api.instance(who, { labels: { a: '1' } });
  const { next_cursor } = await read(api.as(who), '/v1/instances?label=a&limit=1');
  assertError(await api.as(who).get(`/v1/instances?cursor=${next_cursor}`), 'INVALID_REQUEST');
  assertError(await api.as(who).get(`/v1/instances?label=b&cursor=${next_cursor}`), 'INVALID_REQUEST');
  assertError(
    await api.as(who).get(`/v1/instances?label=a&label=b&cursor=${next_cursor}`),
    'INVALID_REQUEST',
  );
  assert.equal((await read(api.as(who), `/v1/instances?label=a&cursor=${next_cursor}`)).data.length, 1);
});

test('a cursor is valid for three days and reveals nothing', async () => {
  const who = await api.person();
  let now_ms = Date.now();
  const sealer = new CursorSealer(api.context.root_key, () => now_ms);
  const principal = {
    credential: { kind: 'session', id: who.session_id, user_id: who.user_id, email_confirmed: true },
    org_id: who.org_id,
    role: who.role,
    scopes: new Set<never>(),
  } as const;
  const scope = { route: 'r', principal, filter: {} };
  const cursor = sealer.seal(scope, who.user_id);
  assert.ok(!Buffer.from(cursor, 'base64url').toString('latin1').includes(who.user_id));
  assert.notEqual(sealer.seal(scope, who.user_id), cursor);
  now_ms += 3 * 86_400_000 - 2_000;
  assert.equal(sealer.open(scope, cursor), who.user_id);
  now_ms += 4_000;
  assert.throws(() => sealer.open(scope, cursor), { code: 'INVALID_REQUEST' });
});
