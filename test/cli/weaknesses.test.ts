/** `berth doctor` shows weak settings, and only to users who can read the server's data folder. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, beforeEach, describe, test } from 'node:test';
import { request } from 'undici';
import { parseConfig } from '../../src/config/config.ts';
import { pathsIn } from '../../src/config/paths.ts';
import { weakSettings } from '../../src/config/weak-settings.ts';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { findCertificates, replaceCertificate } from '../../src/control-plane/fleet/control-plane-store.ts';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { hostsCertificate, renewCertificate } from '../../src/control-plane/fleet/hosts-certificate.ts';
import { addSecretKey, forgetSecretKey } from '../../src/control-plane/fleet/root-key.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { createInternalApp } from '../../src/control-plane/internal/app.ts';
import { updateQuotas } from '../../src/control-plane/organisations/quota-store.ts';
import {
  ensureSecrets,
  keepFirstLogin,
  makeDataFolder,
  weakFiles,
  writeSecret,
} from '../../src/launcher/data-folder.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { allQuotas, QUOTA_DEFAULTS } from '../../src/shared/quotas.ts';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { NO_INSTALLATION } from '../support/no-installation.ts';
import { makeKey } from '../support/people.ts';
import { FACTS } from '../support/scripted-agent.ts';

const api = await apiForFile({ context: { quotas: QUOTA_DEFAULTS, has_smtp: true } });
const first = await api.person();
const owner = await api.person();
const { key } = await makeKey(api.db, first, '*');
const NOT_LOOKED_FOR = /^- +weaknesses +not checked: .*\n +next: BERTH_DATA_DIR=FOLDER berth doctor/m;
const SOUND = { BERTH_PUBLIC_URL: 'https://berth.example.org', BERTH_SMTP_URL: 'smtp://mail.example.org' };

interface Found {
  readonly check: string;
  readonly ok: boolean | null;
  readonly weak?: true;
  readonly found: string;
  readonly next?: string;
}

/** The data folder of a server with such settings, which answers on its socket. */
async function serverWith(env: Record<string, string>, origin = api.origin) {
  const data_dir = await mkdtemp(join(tmpdir(), 'berth-weak-'));
  after(() => rm(data_dir, { recursive: true, force: true }));
  const paths = pathsIn(data_dir);
  await makeDataFolder(paths);
  await ensureSecrets(paths, null, false);
  await writeSecret(paths.host_token, `${api.host_token}\n`);
  const parsed = parseConfig(env, data_dir);
  assert(parsed.ok);
  const installation = {
    ...NO_INSTALLATION,
    origins: [origin],
    weak_settings: weakSettings(parsed.config),
    weakFiles: () => weakFiles(paths.secrets),
  };
  const app = createInternalApp({ ...api.context, host_lease_ms: 40_000, installation });
  after(() => app.close());
  await app.listen({ path: paths.agent_api_socket });
  const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key, BERTH_DATA_DIR: data_dir });
  const weak = async () => {
    const { code, out } = await cli.run(['doctor', '--json']);
    const found = JSON.parse(out) as Found[];
    assert.equal(code, found.some(({ ok }) => ok === false) ? 1 : 0, 'a weakness is no failure');
    return found.filter((each) => each.weak || each.check === 'weaknesses');
  };
  return { cli, paths, weak, checks: async () => (await weak()).map(({ check }) => check) };
}

beforeEach(async () => {
  await api.agent.connect({ ...FACTS, accelerator: 'kvm' });
  await updateQuotas(api.db, owner.org_id, {}, ['cpus']);
});

describe('on its machine', () => {
  test('a sound server has no weakness that is known', async () => {
    const { weak } = await serverWith(SOUND);
    assert.deepEqual(await weak(), [{ check: 'weaknesses', ok: true, found: 'none found' }]);
  });

  test('what awaits its removal in object storage is shown, and is no weakness', async (t) => {
    const { cli, weak } = await serverWith(SOUND);
    const key = 'disks/inst_x/seg/1/1-00000000-0';
    await api.db
      .insertInto('segments')
      .values({ key, size_bytes: 3 * 2 ** 20 })
      .execute();
    t.after(() => api.db.deleteFrom('segments').where('key', '=', key).execute());
    const { out } = await cli.run(['doctor']);
    assert.match(
      out,
      /^- +removal +3(\.0)? MiB in object storage are of no use any more; they stay for 1 hour, .*\n +next: berth disk free --older-than 10m/m,
    );
    assert.deepEqual(await weak(), [{ check: 'weaknesses', ok: true, found: 'none found' }]);
  });

  test('settings, quotas, hosts and files that weaken it are listed, each with what to set', async () => {
    await api.agent.connect({ ...FACTS, isolation_problem: 'not root: VMs share our user' });
    await updateQuotas(api.db, owner.org_id, { cpus: null }, []);
    const { cli, checks, weak, paths } = await serverWith({ BERTH_SIGNUPS: 'open' });
    await keepFirstLogin(paths, { url: api.origin, email: 'admin@localhost', password: 'x' });
    await chmod(paths.secret_key, 0o644);
    const isolation = ['VM isolation', 'VM isolation'];
    assert.deepEqual(await checks(), [
      ...['sign-ups', 'TLS', 'public URL', 'quotas', ...isolation, 'secrets', 'first login'],
    ]);
    for (const { found, next } of await weak()) assert(found !== '' && next, found);
    const { out } = await cli.run(['doctor']);
    assert.match(out, /^! {3}sign-ups +open: .*\n {4}next: BERTH_SIGNUPS=closed$/m);
    assert.match(
      out,
      new RegExp(
        `^! {3}quotas +unlimited of ${owner.org_id} \\(cpus\\): .*\\n {4}next: berth org quota`,
        'm',
      ),
    );
    assert.match(out, /^! {3}VM isolation +not in force on host local: not root: VMs share our user$/m);
    assert.match(out, /^! {3}first login +.*first-login$/m);
    assert.ok(!out.includes(api.host_token));
  });

  test('the quotas of the first organisation are its operator’s own, and no weakness', async () => {
    await updateQuotas(api.db, first.org_id, allQuotas(null), []);
    const { checks } = await serverWith(SOUND);
    assert.deepEqual(await checks(), ['weaknesses']);
  });

  test('a secret key that is replaced, but not forgotten yet, is one', async () => {
    const { checks, cli } = await serverWith(SOUND);
    const added = randomBytes(32);
    await transaction(api.db, (tx) => addSecretKey(tx, api.secret_key, added));
    assert.match(
      (await cli.run(['doctor'])).out,
      /^! {3}secret key +two open the database: .*\n +next: berth secret-key forget-old/m,
    );
    await transaction(api.db, (tx) => forgetSecretKey(tx, api.secret_key, 'new'));
    assert.deepEqual(await checks(), ['weaknesses']);
  });

  test('a certificate that is being replaced is one', async () => {
    const { checks, cli } = await serverWith(SOUND);
    await hostsCertificate(api.db, api.context.root_key);
    assert.ok(await renewCertificate(api.db, api.context.root_key));
    assert.match(
      (await cli.run(['doctor'])).out,
      /^! {3}certificate +that hosts pin: it is being replaced.*\n +next: berth certificate show/m,
    );
    const { next } = await findCertificates(api.db);
    await replaceCertificate(api.db, next?.certificate ?? '');
    assert.deepEqual(await checks(), ['weaknesses']);
  });

  test('of another server than the one that is asked about none is told', async () => {
    const { checks, cli } = await serverWith({ BERTH_SIGNUPS: 'open' }, 'http://127.0.0.1:1');
    assert.deepEqual(await checks(), ['weaknesses']);
    assert.match((await cli.run(['doctor'])).out, NOT_LOOKED_FOR);
  });
});

test('without the data folder that is said, and nobody is told without the host’s token', async () => {
  const { paths } = await serverWith({ BERTH_SIGNUPS: 'open' });
  const elsewhere = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });
  const without = await elsewhere.run(['doctor']);
  assert.match(without.out, NOT_LOOKED_FOR);
  assert.doesNotMatch(without.out, /^!/m);
  await writeFile(paths.host_token, `${'0'.repeat(64)}\n`);
  const stranger = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key, BERTH_DATA_DIR: paths.data });
  assert.doesNotMatch((await stranger.run(['doctor'])).out, /^!/m);
  const { statusCode } = await request(`${api.origin}/internal/v1/weaknesses`, { method: 'POST' });
  assert.equal(statusCode, 404);
});

test('hosts on other machines are not told', async () => {
  await serverWith(SOUND);
  const tls = await hostsCertificate(api.db, api.context.root_key);
  const token = 'far-token';
  const far_id = await ensureHost(api.db, 'far', hashToken(token));
  await api.db.updateTable('hosts').set({ remote: true }).where('id', '=', far_id).execute();
  const app = createInternalApp({ ...api.context, host_lease_ms: 40_000 }, tls);
  after(() => app.close());
  const headers = { authorization: `Bearer ${token}`, [PROTOCOL_HEADER]: String(AGENT_PROTOCOL) };
  const post = (url: string) => app.inject({ method: 'POST', url, headers, payload: {} });
  assert.equal((await post('/internal/v1/object-store')).statusCode, 200);
  assert.equal((await post('/internal/v1/weaknesses')).statusCode, 404);
});
