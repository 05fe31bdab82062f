/** How the web console's files are served. Tests in a browser are in test/e2e. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import { createApp } from '../../src/control-plane/app.ts';
import { CONSOLE_PAGES, CONSOLE_SECURITY_POLICY } from '../../src/control-plane/pages/console.ts';
import { PROJECT } from '../house/imports.ts';
import { apiForFile } from '../support/api.ts';

await import('../../console/build.ts');
const api = await apiForFile({ context: { console_dir: join(PROJECT, 'console', 'dist') } });
const JSON_TYPE = 'application/json; charset=utf-8';
const get = (url: string, headers: Record<string, string> = {}) =>
  api.app.inject({ method: 'GET', url, headers });

const page = await get('/');
const assets = [...page.payload.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, path = '']) => path);

test('every path serves the same page, which is revalidated and loads from and connects to its own server only', async () => {
  for (const path of ['/', ...CONSOLE_PAGES.map((each) => `/${each}`), '/instances/web/terminal']) {
    const { statusCode, headers, payload } = await get(path);
    assert.equal(statusCode, 200, path);
    assert.equal(headers['content-type'], 'text/html; charset=utf-8');
    assert.equal(headers['content-security-policy'], CONSOLE_SECURITY_POLICY);
    assert.equal(headers['cache-control'], 'no-cache');
    assert.equal(headers['x-content-type-options'], 'nosniff');
    assert.equal(headers['cross-origin-opener-policy'], 'same-origin');
    assert.equal(payload, page.payload);
  }
  assert.doesNotMatch(CONSOLE_SECURITY_POLICY, /unsafe|\*|https?:/);
  assert.doesNotMatch(page.payload, /<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=/);
});

test('assets are named by content, cached forever, and compressed as the browser accepts', async () => {
  assert.equal(assets.length, 3);
  for (const path of assets) {
    assert.match(path, /^\/assets\/[a-z]+-[A-Z0-9]{8}\.(js|css|svg)$/);
    const plain = await get(path);
    assert.equal(plain.statusCode, 200);
    assert.equal(plain.headers['cache-control'], 'public, max-age=31536000, immutable');
    assert.equal(plain.headers['vary'], 'Accept-Encoding');
    assert.equal(plain.headers['content-encoding'], undefined);
    const brotli = await get(path, { 'accept-encoding': 'gzip, deflate, br, zstd' });
    assert.equal(brotli.headers['content-encoding'], 'br');
    assert.deepEqual(brotliDecompressSync(brotli.rawPayload), plain.rawPayload);
    const gzip = await get(path, { 'accept-encoding': 'gzip' });
    assert.deepEqual(gunzipSync(gzip.rawPayload), plain.rawPayload);
  }
});

test('an unknown path is 404 in the form of the API', async () => {
  for (const path of ['/nothing', '/assets/nothing.js', '/assets/..%2findex.html', '/v1/instances.html']) {
    const { statusCode, headers } = await get(path);
    assert.equal(statusCode, 404, path);
    assert.equal(headers['content-type'], JSON_TYPE);
  }
});

test('an unknown path shows the page to a browser, as 404, and the error of the API to a program', async () => {
  const browser = { accept: 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8' };
  for (const path of ['/nowhere', '/nowhere/at/all?x=1', '/instance']) {
    const { statusCode, headers, payload } = await get(path, browser);
    assert.deepEqual([statusCode, payload], [404, page.payload], path);
    assert.equal(headers['content-security-policy'], CONSOLE_SECURITY_POLICY);
    assert.equal((await get(path, { accept: '*/*' })).headers['content-type'], JSON_TYPE, path);
  }
  for (const path of ['/v1/nowhere', '/v1', '/assets/nowhere.js', '/favicon.ico', '/metrics']) {
    const { statusCode, headers } = await get(path, browser);
    assert.deepEqual([statusCode, headers['content-type']], [404, JSON_TYPE], path);
  }
  const sent = await api.app.inject({ method: 'POST', url: '/nowhere', headers: browser });
  assert.equal(sent.headers['content-type'], JSON_TYPE);
});

test('settings.json tells everybody whether sign-ups are open, mail is sent, and how to log in, and nothing else', async () => {
  const { statusCode, headers, payload } = await get('/settings.json');
  const alone = { password_login: 'on', oidc: null };
  assert.deepEqual([statusCode, JSON.parse(payload)], [200, { signups: 'closed', mail: 'files', ...alone }]);
  assert.equal(headers['cache-control'], 'no-cache');
  const other = await createApp({ ...api.context, signups: 'open', has_smtp: true });
  const { payload: told } = await other.inject({ url: '/settings.json' });
  await other.close();
  assert.deepEqual(JSON.parse(told), { signups: 'open', mail: 'smtp', ...alone });
});
