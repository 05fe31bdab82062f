/** `X-Forwarded-For` is trusted only from BERTH_TRUSTED_PROXIES: in limits, in the audit log, for keys' networks. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DEFAULT_RATE_LIMITS } from '../../src/config/settings.ts';
import { apiForFile, type TestApi } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';

const rate_limits = DEFAULT_RATE_LIMITS;
const direct = await apiForFile({ context: { rate_limits } });
const proxied = await apiForFile({ context: { rate_limits, trusted_proxies: ['127.0.0.0/8', '10.0.0.1'] } });

const from = (chain: string) => ({ headers: { 'x-forwarded-for': chain } });

/** The rest of an address's 60 requests a minute, after a login from it. */
async function leftAfterLogin(api: TestApi, chain: string): Promise<number> {
  const body = { email: 'nobody@example.org', password: 'no such password' };
  const answer = await api.client.post('/v1/auth/password-reset', { email: body.email }, from(chain));
  assert.equal(answer.status, 202, answer.text);
  return Number(/"address";r=(\d+);/.exec(String(answer.headers['ratelimit']))?.[1]);
}

/** The address that the audit log has for a change. */
async function auditedAddress(api: TestApi, chain: string): Promise<string | null> {
  const who = await api.person();
  const changed = await api.as(who).call('PATCH', '/v1/me', { json: { name: 'Ann' }, ...from(chain) });
  assert.equal(changed.status, 200, changed.text);
  const log = await api.as(who).get<Page<{ ip: string | null }>>('/v1/audit?action=account.change');
  return log.body.data[0]?.ip ?? null;
}

async function keyFor(api: TestApi, network: string): Promise<string> {
  const who = await api.person();
  const body = { name: 'ci', scope: 'api_keys:read', allowed_cidrs: [network] };
  const made = await api.as(who).post<{ key: string }>('/v1/api-keys', body);
  assert.equal(made.status, 201, made.text);
  return made.body.key;
}

describe('without trusted proxies', () => {
  test('X-Forwarded-For is ignored: all callers share one limit', async () => {
    const first = await leftAfterLogin(direct, '192.0.2.1');
    assert.equal(await leftAfterLogin(direct, '192.0.2.2'), first - 1);
  });
  test('the audit log has the address of the connection', async () => {
    assert.equal(await auditedAddress(direct, '192.0.2.1'), '127.0.0.1');
  });
  test('a header does not admit a key from outside its network', async () => {
    const key = await keyFor(direct, '192.0.2.0/24');
    assertError(await direct.as(key).get('/v1/api-keys', from('192.0.2.1')), 'UNAUTHENTICATED');
    const here = await keyFor(direct, '127.0.0.1/32');
    assert.equal((await direct.as(here).get('/v1/api-keys', from('192.0.2.1'))).status, 200);
  });
});

describe('behind a trusted proxy', () => {
  test('each address has its own limit', async () => {
    assert.equal(await leftAfterLogin(proxied, '192.0.2.1'), 59);
    assert.equal(await leftAfterLogin(proxied, '192.0.2.1'), 58);
    assert.equal(await leftAfterLogin(proxied, '192.0.2.2'), 59);
  });
  test('addresses that the caller wrote before the last proxy are not trusted', async () => {
    assert.equal(await auditedAddress(proxied, '198.51.100.9, 192.0.2.3'), '192.0.2.3');
    assert.equal(await auditedAddress(proxied, '192.0.2.4, 10.0.0.1'), '192.0.2.4');
    assert.equal(await auditedAddress(proxied, '192.0.2.4, 10.0.0.2'), '10.0.0.2');
  });
  test('a key for a network is accepted from there only', async () => {
    const key = await keyFor(proxied, '192.0.2.0/24');
    assert.equal((await proxied.as(key).get('/v1/api-keys', from('192.0.2.77'))).status, 200);
    assertError(await proxied.as(key).get('/v1/api-keys', from('192.0.3.1')), 'UNAUTHENTICATED');
    assertError(await proxied.as(key).get('/v1/api-keys'), 'UNAUTHENTICATED');
    assertError(await proxied.as(key).get('/v1/api-keys', from('192.0.2.77, 192.0.3.1')), 'UNAUTHENTICATED');
  });
});
