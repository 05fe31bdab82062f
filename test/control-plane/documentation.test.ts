/** `/docs`: the documentation site as the server gives it. How it looks in a browser: test/e2e/documentation.test.ts. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { brotliDecompressSync } from 'node:zlib';
import { readPages } from '../../site/pages.ts';
import { PROJECT } from '../house/imports.ts';
import { apiForFile } from '../support/api.ts';

await import('../../bin/build-pages.ts');
const api = await apiForFile({
  context: { console_dir: join(PROJECT, 'console', 'dist'), site_dir: join(PROJECT, 'site', 'dist') },
});
const ask = (method: 'GET' | 'HEAD' | 'POST', url: string, headers: Record<string, string> = {}) =>
  api.app.inject({ method, url, headers });
const get = (url: string, headers?: Record<string, string>) => ask('GET', url, headers);

const start = await get('/docs');

test('the start page answers without a credential, with and without a slash at its end', async () => {
  assert.equal(start.statusCode, 200);
  assert.equal(start.headers['content-type'], 'text/html; charset=utf-8');
  assert.match(start.payload, /<h1 id="what-berth-is">What Berth is<\/h1>/);
  assert.equal((await get('/docs/')).payload, start.payload);
});

const idsOf = (text: string) => new Set([...text.matchAll(/\sid="([^"]+)"/g)].map(([, id = '']) => id));
const targetsOf = (text: string) =>
  [...text.matchAll(/\s(?:href|src|data-index)="([^"]*)"/g)].map(([, target = '']) => target);

test('every document is a page; every link, anchor and image of the pages leads somewhere', async () => {
  const queue = readPages().map(({ address }) => address);
  const seen = new Map<string, Set<string>>();
  const broken: string[] = [];
  const wanted: { from: string; to: string; anchor: string }[] = [];
  for (let address = queue.pop(); address !== undefined; address = queue.pop()) {
    if (seen.has(address)) continue;
    const { statusCode, headers, payload } = await get(address);
    const is_page = String(headers['content-type']).startsWith('text/html');
    seen.set(address, is_page ? idsOf(payload) : new Set());
    if (statusCode !== 200) broken.push(address);
    if (!is_page || !address.startsWith('/docs')) continue;
    for (const target of targetsOf(payload)) {
      if (/^(?:https?:|mailto:|data:)/.test(target)) continue;
      const [path = '', anchor] = target.split('#');
      const to = path === '' ? address : path;
      if (!to.startsWith('/')) broken.push(`${address} → ${target}`);
      else queue.push(to);
      if (anchor !== undefined) wanted.push({ from: address, to, anchor });
    }
  }
  assert.ok(seen.size > 100 && wanted.length > 500);
  broken.push(
    ...wanted
      .filter(({ to, anchor }) => seen.get(to)?.has(anchor) !== true)
      .map(({ from, to, anchor }) => `${from} → ${to}#${anchor}`),
  );
  assert.deepEqual([...new Set(broken)], []);
});

test('a page has no inline script or style, and its policy forbids other servers and inline code', async () => {
  const policy = String(start.headers['content-security-policy']);
  assert.match(policy, /^default-src 'none';.*require-trusted-types-for 'script'; trusted-types 'none'$/);
  assert.doesNotMatch(policy, /unsafe|https?:|\*/);
  for (const { address } of readPages()) {
    const { payload } = await get(address);
    assert.doesNotMatch(payload, /<script(?![^>]*\ssrc=)|<style|\son[a-z]+=|\sstyle=/, address);
  }
});

test('a page is revalidated, and 304 when it is unchanged; what is named by its content is kept for ever', async () => {
  assert.equal(start.headers['cache-control'], 'no-cache');
  const etag = String(start.headers['etag']);
  const again = await get('/docs', { 'if-none-match': etag });
  assert.deepEqual([again.statusCode, again.payload], [304, '']);
  assert.equal((await get('/docs', { 'if-none-match': 'W/"other"' })).statusCode, 200);
  const assets = [...start.payload.matchAll(/"(\/docs\/assets\/[^"]+)"/g)].map(([, path = '']) => path);
  assert.ok(assets.length >= 4);
  for (const path of assets)
    assert.equal((await get(path)).headers['cache-control'], 'public, max-age=31536000, immutable', path);
});

test('it comes compressed as the browser accepts, and HEAD has the headers of GET', async () => {
  const brotli = await get('/docs', { 'accept-encoding': 'gzip, br' });
  assert.equal(brotli.headers['content-encoding'], 'br');
  assert.equal(String(brotliDecompressSync(brotli.rawPayload)), start.payload);
  const image = /"(\/docs\/assets\/[^"]+\.png)"/.exec((await get('/docs/console')).payload)?.[1] ?? '';
  assert.equal((await get(image, { 'accept-encoding': 'gzip, br' })).headers['content-encoding'], undefined);
  const head = await ask('HEAD', '/docs');
  assert.deepEqual([head.statusCode, head.payload], [200, '']);
  for (const name of ['content-type', 'content-length', 'etag', 'cache-control', 'content-security-policy'])
    assert.equal(head.headers[name], start.headers[name], name);
});

test('nothing outside of the site is served', async () => {
  for (const path of [
    '/docs/../package.json',
    '/docs/..%2f..%2fpackage.json',
    '/docs/%2e%2e/%2e%2e/package.json',
    '/docs/assets/..%2f..%2fbuild.ts',
    '/docs//etc/passwd',
    '/docs/assets/%00',
    '/docs/stamp',
    '/docs/index.html.br/',
  ])
    assert.equal((await get(path)).statusCode, 404, path);
});

test('an unknown page is 404: a page for a browser, the error of the API for a program', async () => {
  const page = await get('/docs/nothing', { accept: 'text/html,*/*' });
  assert.equal(page.statusCode, 404);
  assert.match(page.payload, /There is no such page/);
  assert.equal(
    (await get('/docs/nothing', { accept: 'text/html', 'if-none-match': String(page.headers['etag']) }))
      .statusCode,
    404,
  );
  const program = await get('/docs/nothing');
  assert.equal(program.statusCode, 404);
  assert.equal(program.json().error.code, 'NOT_FOUND');
  assert.equal((await get('/docs/404')).statusCode, 404);
});
