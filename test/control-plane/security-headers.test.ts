/** The security headers of every answer. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { request } from 'undici';
import { apiForFile } from '../support/api.ts';

const api = await apiForFile({ context: { public_url: 'https://berth.example' } });
const owner = await api.person();

const ANSWERS = {
  'a success': () => api.as(owner).get('/v1/me'),
  'a refusal': () => api.client.get('/v1/me'),
  'what is not there': () => api.client.get('/v1/nothing'),
  'a probe': () => api.client.get('/healthz'),
};

for (const [what, answer] of Object.entries(ANSWERS)) {
  test(`${what}: headers forbid storing, sniffing, framing, loading and referrer`, async () => {
    const { headers } = await answer();
    assert.equal(headers['cache-control'], 'no-store');
    assert.equal(headers['x-content-type-options'], 'nosniff');
    assert.equal(headers['referrer-policy'], 'no-referrer');
    assert.equal(
      headers['content-security-policy'],
      "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    );
    assert.equal(headers['strict-transport-security'], 'max-age=31536000');
    assert.equal(headers['access-control-allow-origin'], undefined, 'no other site may read an answer');
  });
}

test('the content type of JSON names UTF-8', async () => {
  for (const answer of [await ANSWERS['a success'](), await ANSWERS['a refusal']()]) {
    assert.equal(answer.headers['content-type'], 'application/json; charset=utf-8');
  }
});

test('TRACE is never served', async () => {
  const { statusCode } = await request(`${api.origin}/v1/me`, { method: 'TRACE' });
  assert.equal(statusCode, 404);
});
