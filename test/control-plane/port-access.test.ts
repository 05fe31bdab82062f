/** Who may use a private HTTP port: what the control plane answers to the ingress. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import {
  API_KEY_PREFIX,
  hashToken,
  newToken,
  PORT_COOKIE_PREFIX,
} from '../../src/control-plane/identity/tokens.ts';
import { authoriseRequest } from '../../src/control-plane/ports/authorise-request.ts';
import { deleteExpiredAccess } from '../../src/control-plane/ports/store.ts';
import { type HttpPortId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { makeKey, makeServiceKey, makeSession, type Person } from '../support/people.ts';

const api = await apiForFile();
const owner = await api.person();
const { ingress } = api;

interface Published {
  readonly id: HttpPortId;
  readonly instance_id: string;
  readonly hostname: string;
  readonly path: string;
}

async function published(access = 'private', who: Person = owner): Promise<Published> {
  const { id: instance_id } = await api.instance(who);
  const path = `/v1/instances/${instance_id}/ports`;
  const { body } = await api.as(who).post<Published>(path, { port: 8080, access });
  return { id: body.id, hostname: body.hostname, instance_id, path: `${path}/${body.id}` };
}

const port = await published();

type Given = {
  readonly bearer?: string;
  readonly cookie?: string;
  readonly hostname?: string;
  readonly address?: string;
};
async function outcomeOf(of: Published, given: Given): Promise<string> {
  const { bearer = null, cookie = null, hostname = of.hostname, address = '127.0.0.1' } = given;
  const answer = await ingress.authoriseHttp({ port_id: of.id, hostname, address, bearer, cookie });
  return answer.outcome === 'allowed' ? `allowed by ${answer.by}` : answer.outcome;
}

/** The cookie of a browser that `who` sent to the port. */
async function cookieOf(of: Published, who: Person | string = owner): Promise<string> {
  const { status, body, text } = await api.as(who).post<{ url: string }>(`${of.path}/open`);
  assert.equal(status, 201, text);
  const redeemed = await ingress.redeemHttpTicket({ hostname: of.hostname, ticket: ticketIn(body.url) });
  assert.equal(redeemed.outcome, 'redeemed');
  return redeemed.outcome === 'redeemed' ? redeemed.cookie : '';
}
const ticketIn = (url: string) => new URL(url).searchParams.get('ticket') ?? '';

describe('a bearer', () => {
  test('with vm:read on the instance is let in: key, service account, session of any of its organisations', async () => {
    const { key } = await makeKey(api.db, owner, 'vm:read');
    const robot = await makeServiceKey(api.db, owner.org_id, 'vm:read');
    const guest = await api.person();
    await api.db
      .insertInto('memberships')
      .values({ org_id: owner.org_id, user_id: guest.user_id, role: 'billing' })
      .execute();
    for (const bearer of [key, robot.key, owner.session, guest.session])
      assert.equal(await outcomeOf(port, { bearer }), 'allowed by bearer');
  });
  test('403 without the scope or of another organisation, 401 when unknown, expired or revoked', async () => {
    const { key: scopeless } = await makeKey(api.db, owner, 'instances:read vm:write');
    const stranger = await api.person();
    const { key: foreign } = await makeKey(api.db, stranger, '*');
    for (const bearer of [scopeless, foreign, stranger.session])
      assert.equal(await outcomeOf(port, { bearer }), 'forbidden');
    const { key: expired } = await makeKey(api.db, owner, 'vm:read', new Date(Date.now() - 1_000));
    const { id, key: revoked } = await makeKey(api.db, owner, 'vm:read');
    assert.equal(await outcomeOf(port, { bearer: revoked }), 'allowed by bearer');
    await api.db.deleteFrom('api_keys').where('id', '=', id).execute();
    for (const bearer of [expired, revoked, 'berth_live_nonsense', 'berth_other'])
      assert.equal(await outcomeOf(port, { bearer }), 'unauthenticated');
    assert.equal(await outcomeOf(port, {}), 'unauthenticated');
  });
  test('that was made up is refused by its checksum, without a query; so is a cookie', async () => {
    const untouched = new Proxy(api.db, {
      get: () => {
        throw new Error('the database was asked');
      },
    });
    const endpoint = { domain: 'localhost', scheme: 'http', port: null } as const;
    const asked = { port_id: port.id, hostname: port.hostname, address: '127.0.0.1' };
    const wrong = `${newToken(API_KEY_PREFIX).slice(0, -1)}!`;
    for (const credential of [
      ...['berth_live_x', wrong, newToken(PORT_COOKIE_PREFIX)].map((bearer) => ({ bearer, cookie: null })),
      ...['x', newToken(API_KEY_PREFIX)].map((cookie) => ({ bearer: null, cookie })),
    ])
      assert.deepEqual(await authoriseRequest(untouched, endpoint, { ...asked, ...credential }), {
        outcome: 'unauthenticated',
      });
  });
  test('a key that is limited to networks counts from there alone', async () => {
    const { id, key: bearer } = await makeKey(api.db, owner, 'vm:read');
    await api.db
      .updateTable('api_keys')
      .set({ allowed_cidrs: ['10.1.0.0/16'] })
      .where('id', '=', id)
      .execute();
    assert.equal(await outcomeOf(port, { bearer, address: '10.1.2.3' }), 'allowed by bearer');
    assert.equal(await outcomeOf(port, { bearer, address: '10.2.2.3' }), 'unauthenticated');
  });
  test("one that is not Berth's is the guest's own: the cookie decides; one of Berth's decides alone", async () => {
    const cookie = await cookieOf(port);
    assert.equal(await outcomeOf(port, { bearer: 'eyJhbGciOi', cookie }), 'allowed by cookie');
    assert.equal(await outcomeOf(port, { bearer: 'eyJhbGciOi' }), 'unauthenticated');
    assert.equal(await outcomeOf(port, { bearer: 'berth_live_x', cookie }), 'unauthenticated');
  });
});

describe('a ticket', () => {
  test('works once, for its hostname alone, and only its hash is stored', async () => {
    const answer = await api.as(owner).post<{ url: string; expires_at: string }>(`${port.path}/open`);
    assert.equal(answer.headers['cache-control'], 'no-store');
    const { url, expires_at } = answer.body;
    assert.ok(url.startsWith(`http://${port.hostname}:7480/.berth/open?ticket=berth_ptix_`), url);
    const left_s = (Date.parse(expires_at) - Date.now()) / 1000;
    assert.ok(left_s > 50 && left_s <= 61, String(left_s));
    const ticket = ticketIn(url);
    const rows = await api.db.selectFrom('http_tickets').selectAll().execute();
    assert.ok(rows.some((row) => row.ticket_hash.equals(hashToken(ticket))));
    assert.ok(!JSON.stringify(rows).includes(ticket));
    const { hostname } = await published();
    assert.equal((await ingress.redeemHttpTicket({ hostname, ticket })).outcome, 'refused');
    const redeem = () => ingress.redeemHttpTicket({ hostname: port.hostname, ticket });
    const results = await Promise.all([redeem(), redeem(), redeem()]);
    assert.deepEqual(results.map((each) => each.outcome).sort(), ['redeemed', 'refused', 'refused']);
    assert.deepEqual(
      results.flatMap((each) => (each.outcome === 'redeemed' ? [each.max_age_seconds] : [])),
      [12 * 3600],
    );
  });
  test('expires after 60 s', async () => {
    const { body } = await api.as(owner).post<{ url: string }>(`${port.path}/open`);
    await api.db.updateTable('http_tickets').set({ expires_at: sql`now() - interval '1 second'` }).execute();
    const redeemed = await ingress.redeemHttpTicket({
      hostname: port.hostname,
      ticket: ticketIn(body.url),
    });
    assert.equal(redeemed.outcome, 'refused');
    await deleteExpiredAccess(api.db);
    assert.deepEqual(await api.db.selectFrom('http_tickets').selectAll().execute(), []);
  });
  test('is for sessions: 403 for a key, 409 on a public port, 400 for a hostname that is not active there', async () => {
    const { key } = await makeKey(api.db, owner, '*');
    assertError(await api.as(key).post(`${port.path}/open`), 'FORBIDDEN');
    const open = await published('public');
    assertError(await api.as(owner).post(`${open.path}/open`), 'CONFLICT', /public/);
    const other = await api.as(owner).post(`${port.path}/open`, { hostname: open.hostname });
    assert.equal(assertError(other, 'INVALID_REQUEST').details?.[0]?.field, 'hostname');
  });
});

describe('a cookie', () => {
  test('lets its browser in, on its hostname and port alone, and only its hash is stored', async () => {
    const cookie = await cookieOf(port);
    assert.equal(await outcomeOf(port, { cookie }), 'allowed by cookie');
    const other = await published();
    assert.equal(await outcomeOf(other, { cookie }), 'unauthenticated');
    assert.equal(await outcomeOf(port, { cookie: newToken(PORT_COOKIE_PREFIX) }), 'unauthenticated');
    assert.equal(await outcomeOf(port, { cookie: owner.session }), 'unauthenticated');
    const rows = await api.db.selectFrom('http_cookies').selectAll().execute();
    assert.ok(rows.some((row) => row.cookie_hash.equals(hashToken(cookie))));
    assert.ok(!JSON.stringify(rows).includes(cookie));
  });
  test('ends after 12 h', async () => {
    const fresh = await published();
    const cookie = await cookieOf(fresh);
    const row = await api.db
      .selectFrom('http_cookies')
      .select(sql<number>`extract(epoch from expires_at - now())::float8`.as('left_s'))
      .where('port_id', '=', fresh.id)
      .executeTakeFirstOrThrow();
    assert.ok(Math.abs(row.left_s - 12 * 3600) < 60, String(row.left_s));
    await api.db
      .updateTable('http_cookies')
      .set({ expires_at: sql`now()` })
      .where('port_id', '=', fresh.id)
      .execute();
    assert.equal(await outcomeOf(fresh, { cookie }), 'unauthenticated');
  });
  test('ends with its session, also by logout; another session of the user keeps its own', async () => {
    const { session, session_id } = await makeSession(api.db, owner.user_id);
    const mine = { ...owner, session, session_id };
    const cookie = await cookieOf(port, mine);
    const other = await cookieOf(port);
    assert.equal(await outcomeOf(port, { cookie }), 'allowed by cookie');
    assert.equal((await api.as(session).post('/v1/auth/logout')).status, 204);
    assert.equal(await outcomeOf(port, { cookie }), 'unauthenticated');
    assert.equal(await outcomeOf(port, { cookie: other }), 'allowed by cookie');
  });
  test('outlives the token of its session, which is renewed every hour', async () => {
    const { session } = await makeSession(api.db, owner.user_id);
    const cookie = await cookieOf(port, session);
    await api.db.deleteFrom('session_tokens').where('token_hash', '=', hashToken(session)).execute();
    assert.equal(await outcomeOf(port, { cookie }), 'allowed by cookie');
  });
  test('ends with the membership', async () => {
    const member = await api.person({ org_id: owner.org_id, role: 'member' });
    const cookie = await cookieOf(port, member);
    assert.equal(await outcomeOf(port, { cookie }), 'allowed by cookie');
    const path = `/v1/orgs/${owner.org_id}/members/${member.user_id}`;
    assert.equal((await api.as(owner).delete(path)).status, 204);
    assert.equal(await outcomeOf(port, { cookie }), 'unauthenticated');
    assert.equal(await outcomeOf(port, { bearer: member.session }), 'forbidden');
  });
  test('of one session at one port, at most 20 are kept', async () => {
    const fresh = await published();
    const first = await cookieOf(fresh);
    for (let i = 0; i < 20; i++) await cookieOf(fresh);
    const rows = api.db.selectFrom('http_cookies').selectAll().where('port_id', '=', fresh.id);
    assert.equal((await rows.execute()).length, 20);
    assert.equal(await outcomeOf(fresh, { cookie: first }), 'unauthenticated');
  });
});

describe('a port', () => {
  test('that is public lets everybody in; private again, nobody without a credential', async () => {
    const mine = await published('public');
    assert.equal(await outcomeOf(mine, {}), 'allowed by public');
    await api.as(owner).call('PATCH', mine.path, { json: { access: 'private' } });
    assert.equal(await outcomeOf(mine, {}), 'unauthenticated');
  });
  test('that is deleted, unknown, or of an instance that is being deleted is unknown to every credential', async () => {
    const bearer = owner.session;
    const mine = await published();
    const cookie = await cookieOf(mine);
    assert.equal((await api.as(owner).delete(mine.path)).status, 204);
    assert.equal(await outcomeOf(mine, { bearer, cookie }), 'unknown');
    assert.equal(await outcomeOf({ ...mine, id: newId('port') }, { bearer }), 'unknown');
    const other = await published('public');
    await api.as(owner).delete(`/v1/instances/${other.instance_id}`);
    assert.equal(await outcomeOf(other, { bearer }), 'unknown');
  });
  test('is unknown under the hostname of another', async () => {
    const { hostname } = await published();
    assert.equal(await outcomeOf(port, { bearer: owner.session, hostname }), 'unknown');
  });
});
