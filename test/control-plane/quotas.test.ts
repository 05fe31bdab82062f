/** The default quotas, of organisations and of accounts: what is refused, for whom, and when there is room again. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { migrate } from '../../src/control-plane/db/migrate.ts';
import { openPool, transaction } from '../../src/control-plane/db/pool.ts';
import { createFirstAdministrator } from '../../src/control-plane/identity/accounts.ts';
import { createInstance } from '../../src/control-plane/instances/create-instance.ts';
import { checkQuota, readQuota, setQuota } from '../../src/control-plane/organisations/quotas.ts';
import type { OrgId } from '../../src/shared/ids.ts';
import { QUOTA_DEFAULTS, type Quota } from '../../src/shared/quotas.ts';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import type { Answer } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { makeSession, type Person, randomPublicKey } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile({ context: { signups: 'open', quotas: QUOTA_DEFAULTS } });
const { db } = api;
const PASSWORD = 'a password of people';

function assertPast(answer: Answer<unknown>, quota: Quota, numbers: string): void {
  const { details } = assertError(answer, 'QUOTA_EXCEEDED', new RegExp(`quota of ${quota} is `));
  assert.deepEqual(details, [{ field: quota, issue: numbers }]);
}

/** Sends `count` requests at once; all but `made` are refused, past the quota. */
async function atOnce(
  count: number,
  made: number,
  quota: Quota,
  request: (n: number) => Promise<Answer<unknown>>,
): Promise<void> {
  const answers = await Promise.all(Array.from({ length: count }, (_, n) => request(n)));
  const refused = answers.filter(({ status }) => status >= 300);
  assert.equal(answers.length - refused.length, made);
  for (const answer of refused) assertError(answer, 'QUOTA_EXCEEDED', new RegExp(`quota of ${quota} is `));
}

/** As if so much was counted in a window that ends then. */
async function countWindow(key: string, points: number, expire = Date.now() + 3_600_000): Promise<void> {
  await sql`
    insert into request_counts (key, points, expire) values (${key}, ${points}, ${expire})
    on conflict (key) do update set points = excluded.points, expire = excluded.expire`.execute(db);
}

describe('of an organisation', () => {
  test('20 instances, of 24 concurrent ones; another organisation creates its own, and a deletion makes room', async () => {
    const who = await api.person();
    const create = () => api.as(who).post<InstanceOut>('/v1/instances', { name: newName(), disk_gib: 1 });
    await atOnce(24, 20, 'instances', create);
    assertPast(await create(), 'instances', 'quota 20, used 20, wanted 1');
    await api.instance(await api.person());
    await db
      .deleteFrom('instances')
      .where('id', 'in', (query) =>
        query.selectFrom('instances').select('id').where('org_id', '=', who.org_id).limit(1),
      )
      .execute();
    assert.equal((await create()).status, 201);
  });

  test('512 GiB of disks: at creation, as they grow, and by forks', async () => {
    const who = await api.person();
    const create = (disk_gib: number) =>
      api.as(who).post<InstanceOut>('/v1/instances', { name: newName(), disk_gib });
    assertPast(await create(513), 'disk_gib', 'quota 512, used 0, wanted 513');
    const { body } = await create(500);
    assertPast(await create(13), 'disk_gib', 'quota 512, used 500, wanted 13');
    const grow = (disk_gib: number) => api.as(who).patch(`/v1/instances/${body.id}`, { disk_gib });
    assertPast(await grow(513), 'disk_gib', 'quota 512, used 500, wanted 13');
    assert.equal((await grow(512)).status, 200);
  });

  test('32 cpus and 64 GiB of memory of VMs that run', async () => {
    const who = await api.person();
    const stopped = (cpus: number, memory_mib: number) =>
      api.instance(who, { cpus, memory_mib, disk_gib: 1 });
    const start = ({ id }: InstanceOut) => api.as(who).post(`/v1/instances/${id}/vm`);
    await setQuota(db, who.org_id, { cpus: 4, memory_mib: 1024 });
    assert.equal((await start(await stopped(3, 768))).status, 202);
    assertPast(await start(await stopped(2, 128)), 'cpus', 'quota 4, used 3, wanted 2');
    assertPast(await start(await stopped(1, 512)), 'memory_mib', 'quota 1024, used 768, wanted 512');
    assert.equal((await start(await stopped(1, 256))).status, 202);
    await setQuota(db, who.org_id, { cpus: 'default', memory_mib: 'default' });
    const { cpus, memory_mib } = await readQuota(db, QUOTA_DEFAULTS, who.org_id);
    assert.deepEqual(cpus, { limit: 32, source: 'default', used: 4 });
    assert.deepEqual(memory_mib, { limit: 65_536, source: 'default', used: 1024 });
  });

  test('100 API keys, of sessions, keys and service accounts; a revoked one makes room', async () => {
    const who = await api.person();
    const service = await api
      .as(who)
      .post<{ id: string }>('/v1/service-accounts', { name: 'a', scope: 'vm:read' });
    const { body: first } = await api
      .as(who)
      .post<{ id: string; key: string }>('/v1/api-keys', { name: 'first', scope: '*' });
    const create = (n: number) =>
      n % 2 === 0
        ? api.as(who).post('/v1/api-keys', {
            ...{ name: 'a', scope: 'vm:read' },
            ...(n % 4 === 0 ? { service_account_id: service.body.id } : {}),
          })
        : api.as(first.key).post('/v1/api-keys', { name: 'a', scope: 'vm:read' });
    await atOnce(104, 99, 'api_keys', create);
    assertPast(await create(1), 'api_keys', 'quota 100, used 100, wanted 1');
    const { body } = await api.as(who).get<{ data: { id: string }[] }>('/v1/api-keys?limit=1');
    assert.equal((await api.as(who).delete(`/v1/api-keys/${body.data[0]?.id}`)).status, 204);
    assert.equal((await create(1)).status, 201);
  });

  test('50 service accounts', async () => {
    const who = await api.person();
    const create = () => api.as(who).post('/v1/service-accounts', { name: 'robot', scope: 'vm:read' });
    await atOnce(53, 50, 'service_accounts', create);
    assertPast(await create(), 'service_accounts', 'quota 50, used 50, wanted 1');
  });

  test('20 webhooks', async () => {
    const who = await api.person();
    const body = { name: 'hook', url: 'http://127.0.0.1:1/', events: ['vm.failed'] };
    await atOnce(23, 20, 'webhooks', () => api.as(who).post('/v1/webhooks', body));
  });

  test('an unset quota follows the setting; a set one does not', async () => {
    const { org_id } = await api.person();
    const more = { instances: 3 };
    const check = (instances: number | null) =>
      transaction(db, (tx) => checkQuota(tx, { ...QUOTA_DEFAULTS, instances }, org_id, more));
    await assert.rejects(check(2), { code: 'QUOTA_EXCEEDED' });
    await check(3);
    await check(null);
    await setQuota(db, org_id, { instances: null });
    await check(2);
    await setQuota(db, org_id, { instances: 2 });
    await assert.rejects(check(null), { code: 'QUOTA_EXCEEDED' });
    await setQuota(db, org_id, { instances: 'default' });
    await assert.rejects(check(2), { code: 'QUOTA_EXCEEDED' });
  });

  test('a create in an organisation without limits reads no other instance', async () => {
    const { user_id, org_id, session_id } = await api.person();
    await setQuota(db, org_id, { instances: null, disk_gib: null });
    await sql`
      insert into instances (id, org_id, created_by, name, image, cpus, memory_mib, disk_gib, ssh_port)
      select 'inst_' || n, ${org_id}, ${user_id}, n, 'debian-12', 1, 512, 1, 40000 + n
      from generate_series(1, 5000) n`.execute(db);
    await sql`analyze instances`.execute(db);
    const principal = {
      ...{ credential: { kind: 'session', id: session_id, user_id, email_confirmed: true } as const, org_id },
      ...{ role: 'owner' as const, scopes: new Set<never>() },
    };
    const request = {
      ...{ name: newName(), image: 'debian-12', cpus: 1, memory_mib: 512, disk_gib: 8, labels: {} },
      ...{
        idle_timeout_seconds: null,
        wake_on_connect: false,
        restart: 'never' as const,
        auto_flush_seconds: 60,
      },
      ...{ keep_last: 1, keep_daily_days: 0, user_data: null },
      ...{ egress_mode: 'open' as const, egress_allow: [], host_labels: {}, tolerations: [] },
    };
    // A connection of its own: it has counted nothing yet.
    const pool = openPool(api.database.url, () => undefined, 1);
    try {
      await transaction(pool, async (tx) => {
        await createInstance(tx, principal, api.context, request);
        const { rows } = await sql<{ read: number }>`
          select seq_tup_read + idx_tup_fetch as read from pg_stat_xact_user_tables
          where relname = 'instances'`.execute(tx);
        assert.ok(rows[0] && rows[0].read < 20, `${rows[0]?.read} rows were read`);
      });
    } finally {
      await pool.destroy();
    }
  });
});

describe('of an account', () => {
  const register = async () => {
    const email = `${newName()}@example.org`;
    const answer = await api.client.post<{ session_token: string; user: { id: string } }>(
      '/v1/auth/register',
      {
        email,
        password: PASSWORD,
      },
    );
    assert.equal(answer.status, 201, answer.text);
    return { email, session: answer.body.session_token, user_id: answer.body.user.id };
  };

  test('5 organisations, with the one of its registration; a deletion makes room', async () => {
    const who = await register();
    const client = api.as(who.session);
    const create = () => client.post<{ id: OrgId }>('/v1/orgs', { name: 'Another' });
    await atOnce(7, 4, 'organisations', create);
    assertPast(await create(), 'organisations', 'quota 5, used 5, wanted 1');
    const { body } = await client.get<{ data: { id: OrgId }[] }>('/v1/orgs?limit=1');
    const [newest] = body.data;
    assert.equal((await client.delete(`/v1/orgs/${newest?.id}/members/${who.user_id}`)).status, 204);
    assert.equal((await create()).status, 201);
  });

  test('a joined organisation does not count', async () => {
    const who = await register();
    for (let n = 0; n < 5; n++) {
      const { org_id } = await api.person();
      await db
        .insertInto('memberships')
        .values({ org_id, user_id: who.user_id as Person['user_id'], role: 'owner' })
        .execute();
    }
    assert.equal((await api.as(who.session).post('/v1/orgs', { name: 'Mine' })).status, 201);
  });

  test('an account that is removed from its last organisation gets one in which nothing can be created', async () => {
    const who = await register();
    const user_id = who.user_id as Person['user_id'];
    const client = api.as(who.session);
    for (let n = 0; n < 4; n++) await client.post('/v1/orgs', { name: 'Another' });
    const { body } = await client.get<{ data: { id: OrgId }[] }>('/v1/orgs');
    assert.equal(body.data.length, 5);
    for (const { id } of body.data) {
      const other = await api.person({ org_id: id });
      assert.equal((await api.as(other).delete(`/v1/orgs/${id}/members/${user_id}`)).status, 204);
    }
    assertPast(await client.post('/v1/instances', { name: 'any' }), 'instances', 'quota 0, used 0, wanted 1');
    assertPast(
      await client.post('/v1/api-keys', { name: 'any', scope: '*' }),
      'api_keys',
      'quota 0, used 0, wanted 1',
    );
    assertPast(await client.post('/v1/orgs', { name: 'any' }), 'organisations', 'quota 5, used 6, wanted 1');
  });

  test('50 sessions: a further login says how to end some; a reset by mail ends all', async () => {
    const who = await register();
    const user_id = who.user_id as Person['user_id'];
    for (let n = 0; n < 46; n++) await makeSession(db, user_id);
    const login = () => api.client.post('/v1/auth/login', { email: who.email, password: PASSWORD });
    await atOnce(6, 3, 'sessions', login);
    assertPast(await login(), 'sessions', 'quota 50, used 50, wanted 1');
    assertError(
      await login(),
      'QUOTA_EXCEEDED',
      /End one from another session, or reset the password, which ends all/,
    );

    // One whose time is over does not count.
    const over = { ends_at: new Date(Date.now() - 1_000) };
    const [oldest] = await db
      .selectFrom('sessions')
      .select('id')
      .where('user_id', '=', user_id)
      .orderBy('id')
      .limit(1)
      .execute();
    assert.ok(oldest);
    await db.updateTable('sessions').set(over).where('id', '=', oldest.id).execute();
    assert.equal((await login()).status, 200);
    assertPast(await login(), 'sessions', 'quota 50, used 50, wanted 1');

    await api.client.post('/v1/auth/password-reset', { email: who.email });
    const reset = await until('the mail', () => api.mails.findLast(({ to }) => to === who.email));
    const token = /^berth_mail_\w+$/m.exec(reset.text)?.[0];
    const confirm = { token, new_password: PASSWORD };
    assert.equal((await api.client.post('/v1/auth/password-reset/confirm', confirm)).status, 204);
    assert.equal((await login()).status, 200);
  });

  test('300 logins in an hour', async () => {
    const who = await register();
    await countWindow(`logins:${who.user_id}`, 299);
    const login = () => api.client.post('/v1/auth/login', { email: who.email, password: PASSWORD });
    assert.equal((await login()).status, 200);
    const refused = await login();
    assertError(refused, 'RATE_LIMITED', /logged in 300 times in an hour/);
    assert.ok(Number(refused.headers['retry-after']) > 3_000);
  });

  test('50 SSH keys, of 53 concurrent ones', async () => {
    const who = await api.person();
    await atOnce(53, 50, 'ssh_keys', () =>
      api.as(who).post('/v1/me/ssh-keys', { name: 'a', public_key: randomPublicKey().line }),
    );
  });
});

test("the first organisation's quotas are unlimited, its administrator's are not", async () => {
  const url = await api.database.createEmpty('first');
  await migrate(url);
  const first = openPool(url, () => undefined, 2);
  try {
    await createFirstAdministrator(first, 'admin@localhost', PASSWORD);
    const org = await first.selectFrom('organisations').selectAll().executeTakeFirstOrThrow();
    const states = await readQuota(first, QUOTA_DEFAULTS, org.id);
    assert.deepEqual(
      [...new Set(Object.values(states).map(({ limit, source }) => `${limit} ${source}`))],
      ['null set'],
    );
    assert.ok(org.created_by);
  } finally {
    await first.destroy();
  }
});
