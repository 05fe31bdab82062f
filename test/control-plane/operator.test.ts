/** The installation as its operator sees it. Who else is refused: also test/control-plane/authorisation.test.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { createFirstAdministrator } from '../../src/control-plane/identity/accounts.ts';
import { updateQuotas } from '../../src/control-plane/organisations/quota-store.ts';
import { newId } from '../../src/shared/ids.ts';
import { QUOTA_DEFAULTS } from '../../src/shared/quotas.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { NO_INSTALLATION } from '../support/no-installation.ts';
import { makeSession, type Person } from '../support/people.ts';
import { FACTS } from '../support/scripted-agent.ts';

const WEAK = { check: 'mail', found: 'none', next: 'BERTH_SMTP_URL=smtp://…' };
const FILE = { check: 'secrets', found: 'others may read them', next: 'chmod' };
const api = await apiForFile({
  context: {
    quotas: QUOTA_DEFAULTS,
    installation: { ...NO_INSTALLATION, weak_settings: [WEAK], weakFiles: () => [FILE] },
  },
});

interface Status {
  readonly version: string;
  readonly findings: readonly { severity: string; check: string; found: string; next: string | null }[];
  readonly storage: { kind: string; place: string; disk_bytes: number; image_bytes: number };
  readonly data_folder: { path: string; free_bytes: number; total_bytes: number };
  readonly mail: { smtp: boolean; waiting: number; failing: number };
}
interface Page<T> {
  readonly data: readonly T[];
  readonly next_cursor: string | null;
}

/** The first administrator, as a first start makes it. */
async function firstAdministrator(): Promise<Person> {
  assert.ok(await createFirstAdministrator(api.db, 'admin@localhost', 'correct horse battery staple'));
  const { user_id, org_id } = await api.db
    .selectFrom('memberships')
    .select(['user_id', 'org_id'])
    .executeTakeFirstOrThrow();
  return {
    user_id,
    org_id,
    email: 'admin@localhost',
    role: 'owner',
    ...(await makeSession(api.db, user_id)),
  };
}

const operator = await firstAdministrator();
const customer = await api.person();
const ROUTES = ['', '/hosts', '/images', '/organisations'].map((path) => `/v1/operator${path}`);
const get = async <T>(path: string, who: Person = operator) => {
  const { status, body, text } = await api.as(who).get<T>(path);
  assert.equal(status, 200, text);
  return body;
};
const status = () => get<Status>('/v1/operator');

test('the owners of every other organisation get 403, also once the operator’s is deleted', async (t) => {
  for (const path of ROUTES) assertError(await api.as(customer).get(path), 'FORBIDDEN');
  const deleted = () => api.db.updateTable('organisations').set({ operator: false }).execute();
  await deleted();
  t.after(() =>
    api.db.updateTable('organisations').set({ operator: true }).where('id', '=', operator.org_id).execute(),
  );
  for (const who of [customer, operator]) {
    for (const path of ROUTES) assertError(await api.as(who).get(path), 'FORBIDDEN');
  }
});

test('an operator who acts in another organisation is refused there', async () => {
  const { body } = await api
    .as(operator)
    .post<{ id: string; operator: boolean }>('/v1/orgs', { name: 'Other' });
  assert.equal(body.operator, false);
  for (const path of ROUTES) {
    assertError(await api.as(operator).call('GET', path, { headers: { 'berth-org': body.id } }), 'FORBIDDEN');
  }
});

test('an organisation says whether it operates the installation', async () => {
  assert.equal((await get<{ operator: boolean }>(`/v1/orgs/${operator.org_id}`)).operator, true);
  assert.equal((await get<{ operator: boolean }>(`/v1/orgs/${customer.org_id}`, customer)).operator, false);
});

test('the findings are those of berth doctor, problems first', async () => {
  await api.agent.connect({ ...FACTS, object_store_problem: 'connection refused' });
  const { findings } = await status();
  assert.deepEqual(findings[0], {
    severity: 'problem',
    check: 'object storage',
    found: 'connection refused',
    next: 'look at the log of Berth',
  });
  assert.deepEqual(
    findings.filter(({ check }) => [WEAK.check, FILE.check].includes(check)),
    [WEAK, FILE].map((each) => ({ severity: 'weakness', ...each })),
  );
  await api.agent.connect({ ...FACTS, accelerator: 'kvm' });
  assert.ok((await status()).findings.every(({ severity }) => severity === 'weakness'));
});

test('the storage is the sum of all objects, and the data folder has its free space', async () => {
  const before = (await status()).storage;
  await api.db
    .insertInto('segments')
    .values({ key: `disks/${newId('inst')}/seg/1`, size_bytes: 4096 })
    .execute();
  const { storage, data_folder } = await status();
  assert.equal(storage.disk_bytes, before.disk_bytes + 4096);
  assert.equal(storage.kind, 'folder');
  assert.ok(data_folder.free_bytes > 0 && data_folder.free_bytes <= data_folder.total_bytes);
});

test('mails that wait and mails that fail are counted', async () => {
  const mail = (attempts: number) => ({
    id: newId('mail'),
    kind: 'invitation',
    user_id: null,
    content: Buffer.from('x'),
    attempts,
    expires_at: new Date(Date.now() + 3_600_000),
  });
  const before = (await status()).mail;
  await api.db
    .insertInto('mails')
    .values([mail(0), mail(3)])
    .execute();
  assert.deepEqual((await status()).mail, {
    smtp: false,
    waiting: before.waiting + 2,
    failing: before.failing + 1,
  });
});

test('a host has its state, capacity, use and problems', async () => {
  await api.agent.connect({ ...FACTS, memory_mib: 4096, accelerator: 'kvm', isolation_problem: 'not root' });
  const { id } = await api.instance(operator, { memory_mib: 512 });
  await api.as(operator).post(`/v1/instances/${id}/vm`);
  await ensureHost(api.db, 'far', Buffer.from('no token'));
  await api.db.updateTable('hosts').set({ remote: true }).where('name', '=', 'far').execute();
  const { data } = await get<Page<Record<string, unknown>>>('/v1/operator/hosts');
  const [far, local] = data;
  assert.equal(far?.['state'], 'expected');
  assert.equal(far?.['memory_mib'], null);
  const { last_seen_at, protocol, ...rest } = local ?? {};
  assert.ok(typeof last_seen_at === 'string' && typeof protocol === 'number');
  assert.deepEqual(rest, {
    id: api.host_id,
    name: 'local',
    remote: false,
    state: 'up',
    labels: {},
    taints: [],
    lease_seconds: null,
    vms: 1,
    memory_used_mib: 512,
    memory_mib: 4096,
    cpus: FACTS.cpus,
    accelerator: 'kvm',
    problems: ['isolation of VMs: not root'],
  });
});

test('an image has its versions, newest first, with the disks that are based on each', async () => {
  const version = (digit: string, created_at: Date) => ({
    image_id: 'alpine',
    version: digit.repeat(64),
    recipe: 'r',
    index_sha256: digit.repeat(64),
    size_bytes: 1024,
    stored_bytes: 512,
    current: digit === 'b',
    created_at,
  });
  const now = Date.now();
  await api.db
    .insertInto('image_versions')
    .values([version('a', new Date(now - 1000)), version('b', new Date(now))])
    .execute();
  const { id } = await api.instance(operator);
  await api.db
    .updateTable('disks')
    .set({ image_version: 'a'.repeat(64) })
    .where('instance_id', '=', id)
    .execute();
  const { data } =
    await get<Page<{ image: string; version: string; current: boolean; disks: number }>>(
      '/v1/operator/images',
    );
  assert.deepEqual(
    data.map(({ image, version: hash, current, disks }) => [image, hash.charAt(0), current, disks]),
    [
      ['alpine', 'b', true, 0],
      ['alpine', 'a', false, 1],
    ],
  );
});

test('every organisation is listed with its quotas and its use, newest first, page by page', async () => {
  await updateQuotas(api.db, customer.org_id, { instances: 7, cpus: null }, []);
  await api.instance(customer, { disk_gib: 3 });
  interface Row {
    readonly id: string;
    readonly members: number;
    readonly operator: boolean;
    readonly quota: Record<string, { limit: number | null; used: number; source: string }>;
  }
  const rows: Row[] = [];
  for (let cursor = ''; ; ) {
    const page = await get<Page<Row>>(`/v1/operator/organisations?limit=2${cursor}`);
    rows.push(...page.data);
    if (page.next_cursor === null) break;
    cursor = `&cursor=${page.next_cursor}`;
  }
  const ids = rows.map(({ id }) => id);
  assert.deepEqual(ids, ids.toSorted().reverse());
  const found = rows.find(({ id }) => id === customer.org_id);
  assert.equal(found?.members, 1);
  assert.deepEqual(found?.quota['instances'], { limit: 7, used: 1, source: 'set' });
  assert.deepEqual(found?.quota['cpus'], { limit: null, used: 0, source: 'set' });
  assert.deepEqual(found?.quota['disk_gib'], { limit: QUOTA_DEFAULTS.disk_gib, used: 3, source: 'default' });
  assert.equal(rows.filter(({ operator: is }) => is).length, 1);
});

test('no answer has a credential, a hash of one, or the secret key', async () => {
  const secrets = [api.host_token, operator.session, api.context.root_key.toString('hex')];
  for (const path of ROUTES) {
    const text = JSON.stringify(await get(path));
    for (const secret of secrets) assert.ok(!text.includes(secret), path);
    assert.doesNotMatch(text, /token|password|sealed/i);
  }
});
