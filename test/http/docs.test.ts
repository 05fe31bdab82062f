/** `/docs`: the API document as a page, without any other server. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { accessApiForFile } from '../support/access-api.ts';

const api = await accessApiForFile();

async function page(path: string) {
  const answer = await api.client.get(path);
  assert.equal(answer.status, 200, `${path}: ${answer.status}`);
  return answer;
}

test('/docs answers without a credential, with and without a slash at its end', async () => {
  for (const path of ['/docs', '/docs/']) {
    const { headers, text } = await page(path);
    assert.match(String(headers['content-type']), /^text\/html/);
    assert.match(text, /<div id="swagger-ui">/);
  }
});

test('its content security policy forbids other servers and inline code', async () => {
  const policy = String((await page('/docs/')).headers['content-security-policy']);
  assert.match(policy, /^default-src 'none';/);
  assert.doesNotMatch(policy, /unsafe|https?:|\*/);
  const sources = policy.split(';').flatMap((directive) => directive.trim().split(' ').slice(1));
  assert.deepEqual([...new Set(sources)].sort(), ["'none'", "'self'", 'data:']);
});

test('the page has no inline script or style, and loads from this server only', async () => {
  const { text } = await page('/docs/');
  assert.doesNotMatch(text, /<script(?![^>]*\ssrc=)|<style|\son[a-z]+=|\sstyle=/);
  const loaded = [...text.matchAll(/(?:src|href)="([^"]+)"/g)].map((match) => String(match[1]));
  assert.ok(loaded.length >= 4, text);
  for (const url of loaded) {
    assert.match(url, /^\.\/static\//);
    await page(`/docs/${url.slice(2)}`);
  }
});

test('it renders the document of GET /v1/openapi.json', async () => {
  const { text: initializer } = await page('/docs/static/swagger-initializer.js');
  assert.match(initializer, /resolveUrl\('\.\/json'\)/);
  assert.deepEqual((await page('/docs/json')).body, (await page('/v1/openapi.json')).body);
});
