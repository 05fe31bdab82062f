/** `/docs/api`: the API document as a page, without any other server. How it looks in a browser: test/e2e/docs.test.ts. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import { ERROR_CODES } from '../../src/shared/errors.ts';
import { PROJECT } from '../house/imports.ts';
import { apiForFile } from '../support/api.ts';
import { type Document, endpointsOf } from '../support/openapi.ts';

await import('../../console/build.ts');
const api = await apiForFile({ context: { console_dir: join(PROJECT, 'console', 'dist') } });
const get = (url: string, headers: Record<string, string> = {}) =>
  api.app.inject({ method: 'GET', url, headers });
const page = await get('/docs/api');
const text = page.payload;
const ids = [...text.matchAll(/\sid="([^"]+)"/g)].map(([, id = '']) => id);

test('/docs/api answers without a credential; /docs leads to it where the documentation is not built', async () => {
  assert.equal(page.statusCode, 200);
  assert.equal(page.headers['content-type'], 'text/html; charset=utf-8');
  for (const path of ['/docs', '/docs/']) {
    const { statusCode, headers } = await get(path);
    assert.deepEqual([statusCode, headers.location], [302, '/docs/api']);
  }
});

test('it comes compressed as the browser accepts', async () => {
  const brotli = await get('/docs/api', { 'accept-encoding': 'gzip, deflate, br' });
  assert.equal(String(brotliDecompressSync(brotli.rawPayload)), text);
  const gzip = await get('/docs/api', { 'accept-encoding': 'gzip' });
  assert.equal(String(gunzipSync(gzip.rawPayload)), text);
  assert.equal(gzip.headers['vary'], 'Accept-Encoding');
});

const policy = String(page.headers['content-security-policy']);

test('its content security policy forbids other servers and inline code', () => {
  assert.match(policy, /^default-src 'none';/);
  assert.doesNotMatch(policy, /unsafe|https?:|\*/);
});

test('no script of it can turn text into markup or code: Trusted Types, without any policy', () => {
  assert.match(policy, /require-trusted-types-for 'script'; trusted-types 'none'$/);
});

test('the page has no inline script or style, and loads from this server only', async () => {
  assert.doesNotMatch(text, /<script(?![^>]*\ssrc=)|<style|\son[a-z]+=|\sstyle=/);
  const loaded = [...text.matchAll(/<(?:script|link)[^>]*(?:src|href)="([^"]+)"/g)].map(
    ([, url = '']) => url,
  );
  const own = loaded.filter((url) => url !== 'data:,');
  assert.equal(own.length, 2, 'a script and a style sheet');
  for (const url of own) {
    assert.match(url, /^\/assets\/reference-\w+\.(js|css)$/);
    assert.equal((await get(url)).statusCode, 200);
  }
});

test('every operation of GET /v1/openapi.json appears, with its path, access and a curl command', async () => {
  const document = (await get('/v1/openapi.json')).json() as Document;
  const endpoints = endpointsOf(document);
  assert.ok(endpoints.length > 80);
  for (const { name, method, path, operation } of endpoints) {
    const id = operation.operationId;
    const article =
      text.split(`<article id="${id}"`)[1]?.split('</article>')[0] ?? assert.fail(`${name} is missing`);
    assert.match(article, new RegExp(`>${method}</strong> ${path.replaceAll(/[{}.]/g, '\\$&')}<`), name);
    assert.match(article, /<strong>Access<\/strong>/, name);
    const variables = path.replaceAll(/\{(\w+)\}/g, (_, word: string) => `$${word.toUpperCase()}`);
    assert.ok(article.includes(`&quot;${api.context.public_url}${variables}&quot;`), name);
    assert.ok(text.includes(`<li><a href="#${id}">`), `${name} is not in the contents`);
  }
});

test('every error code is explained', () => {
  for (const code of Object.keys(ERROR_CODES)) assert.ok(ids.includes(`error-${code}`), code);
});

test('every id is unique, and every link within the page leads to one', () => {
  assert.deepEqual(
    ids.filter((id, at) => ids.indexOf(id) !== at),
    [],
  );
  const linked = [...text.matchAll(/href="#([^"]+)"/g)].map(([, id = '']) => id);
  assert.ok(linked.length > 500);
  assert.deepEqual([...new Set(linked.filter((id) => !ids.includes(id)))], []);
});

test('text of the document is never markup', () => {
  assert.doesNotMatch(text, /undefined|\[object/);
  assert.ok(text.includes('&lt;') || !JSON.stringify(api.app.apiDocument()).includes('<'));
});
