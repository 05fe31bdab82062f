/** Logins of programs that a person confirms in the console. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sweep } from '../../src/control-plane/sweep.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { makeSession, makeSudo, type Person } from '../support/people.ts';

const PUBLIC = 'https://berth.example.org';
const api = await apiForFile({ context: { public_url: PUBLIC } });

interface Asked {
  readonly device_code: string;
  readonly user_code: string;
  readonly url: string;
  readonly interval_seconds: number;
  readonly expires_at: string;
}

async function ask(body: object = {}): Promise<Asked> {
  const answer = await api.client.call<Asked>('POST', '/v1/auth/device-logins', {
    json: body,
    headers: { 'user-agent': 'berth-cli (linux)' },
  });
  assert.equal(answer.status, 201, answer.text);
  assert.equal(answer.headers['cache-control'], 'no-store');
  return answer.body;
}
const take = ({ device_code }: Pick<Asked, 'device_code'>) =>
  api.client.post<{ session_token: string; expires_at: string; user: { id: string } }>(
    '/v1/auth/device-logins/token',
    { device_code },
  );
const confirm = (who: Person | string, { user_code }: Asked, headers = {}) =>
  api.as(who).call('POST', `/v1/auth/device-logins/${user_code}/confirm`, { json: {}, headers });
const makeOld = ({ user_code }: Asked) =>
  api.db
    .updateTable('device_logins')
    .set({ expires_at: new Date(Date.now() - 1) })
    .where('user_code', '=', user_code)
    .execute();

async function actionsOf({ org_id }: Person): Promise<string[]> {
  const rows = await api.db
    .selectFrom('audit_log')
    .select(['action', 'data'])
    .where('org_id', '=', org_id)
    .orderBy('id')
    .execute();
  return rows.map(({ action, data }) => `${action} ${(data as { user_agent?: string }).user_agent ?? ''}`);
}

describe('a device login', () => {
  test('opens one session of whoever confirms it, once, with no cookie that renews it', async () => {
    const ann = await api.person();
    const asked = await ask();
    assert.match(asked.user_code, /^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$/);
    assert.equal(asked.url, `${PUBLIC}/device?code=${asked.user_code}`);
    const left_ms = Date.parse(asked.expires_at) - Date.now();
    assert.ok(left_ms > 540_000 && left_ms <= 601_000, `${left_ms}`);
    const early = await take(asked);
    assertError(early, 'CONFLICT');
    assert.equal(early.headers['retry-after'], String(asked.interval_seconds));

    const seen = await api.as(ann).get<Record<string, unknown>>(`/v1/auth/device-logins/${asked.user_code}`);
    assert.deepEqual(
      { ip: seen.body['ip'], agent: seen.body['user_agent'], sudo: seen.body['sudo'] },
      { ip: '127.0.0.1', agent: 'berth-cli (linux)', sudo: false },
    );
    assert.ok(!seen.text.includes(asked.device_code));
    assert.equal((await confirm(ann, asked)).status, 204);
    assertError(await confirm(ann, asked), 'NOT_FOUND');
    assertError(await api.as(ann).get(`/v1/auth/device-logins/${asked.user_code}`), 'NOT_FOUND');

    const taken = await take(asked);
    assert.equal(taken.status, 200, taken.text);
    assert.equal(taken.headers['set-cookie'], undefined);
    assert.equal(taken.headers['cache-control'], 'no-store');
    assert.equal(taken.body.user.id, ann.user_id);
    assert.ok(Date.parse(taken.body.expires_at) <= Date.now() + 3_600_000);
    const me = await api.as(taken.body.session_token).get<{ id: string }>('/v1/me');
    assert.equal(me.body.id, ann.user_id);
    assertError(await take(asked), 'UNAUTHENTICATED');
    const actions = await actionsOf(ann);
    assert.ok(actions.includes('auth.confirm_device_login berth-cli (linux)'), actions.join());
    assert.ok(actions.some((each) => each.startsWith('auth.login ')));
  });

  test('is taken by one of two programs that ask at the same time', async () => {
    const ann = await api.person();
    const asked = await ask();
    await confirm(ann, asked);
    const statuses = (await Promise.all([take(asked), take(asked), take(asked)])).map(({ status }) => status);
    assert.deepEqual(statuses.sort(), [200, 401, 401]);
  });

  test('is over when it is refused, after ten minutes, and when the confirming session ends', async () => {
    const ann = await api.person();
    const refused = await ask();
    const path = `/v1/auth/device-logins/${refused.user_code}`;
    assert.equal((await api.as(ann).call('DELETE', path)).status, 204);
    assertError(await take(refused), 'UNAUTHENTICATED');
    assert.ok((await actionsOf(ann)).includes('auth.refuse_device_login berth-cli (linux)'));

    const old = await ask();
    await makeOld(old);
    assertError(await confirm(ann, old), 'NOT_FOUND');
    assertError(await take(old), 'UNAUTHENTICATED');

    const late = await ask();
    await confirm(ann, late);
    await makeOld(late);
    assertError(await take(late), 'UNAUTHENTICATED');

    const ended = await ask();
    const { session } = await makeSession(api.db, ann.user_id);
    await confirm(session, ended);
    await api.as(session).post('/v1/auth/logout', {});
    assertError(await take(ended), 'UNAUTHENTICATED');
    await sweep(api.db);
    const codes = [refused, old, late, ended].map(({ user_code }) => user_code);
    const rows = api.db.selectFrom('device_logins').select('user_code').where('user_code', 'in', codes);
    assert.deepEqual(await rows.execute(), []);
  });

  test('lasts no longer than the session that confirmed it', async () => {
    const ann = await api.person();
    const asked = await ask();
    await confirm(ann, asked);
    const ends_at = new Date(Date.now() + 120_000);
    await api.db.updateTable('sessions').set({ ends_at }).where('id', '=', ann.session_id).execute();
    const { body } = await take(asked);
    assert.ok(Date.parse(body.expires_at) <= ends_at.getTime());
  });

  test('that asks for sudo needs sudo of whoever confirms, and brings a grant for its own session', async () => {
    const ann = await api.person();
    const asked = await ask({ sudo: true });
    assertError(await confirm(ann, asked), 'SUDO_REQUIRED');
    assertError(await take(asked), 'CONFLICT');
    assert.equal((await confirm(ann, asked, await makeSudo(api.db, ann))).status, 204);
    const taken = await take(asked);
    const [cookie = ''] = [taken.headers['set-cookie']].flat();
    assert.match(
      cookie,
      /^__Secure-berth_sudo=berth_sudo_\w+; Path=\/v1; Max-Age=300; HttpOnly; Secure; SameSite=Strict$/,
    );
    const headers = { cookie: cookie.split(';')[0] ?? '' };
    const json = { type: 'totp', name: 'phone' };
    const use = (session: string) => api.as(session).call('POST', '/v1/me/mfa/factors', { json, headers });
    assertError(await use(ann.session), 'SUDO_REQUIRED');
    assert.equal((await use(taken.body.session_token)).status, 201);
  });

  test('is not found by codes that nobody has shown', async () => {
    const ann = await api.person();
    for (const code of ['BCDF-GHJK', 'bcdf-ghjk', 'BCDFGHJK', newId('sess'), '%00'])
      assertError(await api.as(ann).get(`/v1/auth/device-logins/${code}`), 'NOT_FOUND');
    for (const device_code of ['x', ann.session, 'berth_devc_x'])
      assertError(await take({ device_code }), 'UNAUTHENTICATED');
    assertError(await api.client.post('/v1/auth/device-logins', { more: 1 }), 'INVALID_REQUEST');
  });

  test('counts each of its requests against the address', async () => {
    const limited = await apiForFile({
      context: { rate_limits: { principal: 1_200, address: 6, changes: 1_000 } },
    });
    const ann = await limited.person();
    const path = '/v1/auth/device-logins/BCDF-GHJK';
    const answers = [
      await limited.client.post('/v1/auth/device-logins', {}),
      await limited.client.post('/v1/auth/device-logins/token', { device_code: 'x' }),
      await limited.as(ann).get(path),
      await limited.as(ann).post(`${path}/confirm`, {}),
      await limited.as(ann).call('DELETE', path),
      await limited.as(ann).get(path),
    ];
    assert.deepEqual(
      answers.map(({ status }) => status),
      [201, 401, 404, 404, 404, 404],
    );
    assertError(await limited.as(ann).get(path), 'RATE_LIMITED');
    assertError(
      await limited.client.post('/v1/auth/device-logins/token', { device_code: 'x' }),
      'RATE_LIMITED',
    );
  });

  test('answers no other site’s page', async () => {
    for (const path of ['', '/token']) {
      const answer = await api.client.call('POST', `/v1/auth/device-logins${path}`, {
        json: path === '' ? {} : { device_code: 'x' },
        headers: { origin: 'https://evil.test' },
      });
      assertError(answer, 'FORBIDDEN');
    }
  });
});
