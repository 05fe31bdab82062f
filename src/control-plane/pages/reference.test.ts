import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import type { OperationObject } from '../http/openapi-schemas.ts';
import { curlExample, html, inline, joined, prose } from './reference.ts';

test('every text is escaped, in content and in attributes, and markup is not escaped again', () => {
  const hostile = `<script>"&'`;
  const inner = html`<b title="${hostile}">${hostile}</b>`;
  const escaped = '&lt;script&gt;&quot;&amp;&#39;';
  assert.equal(html`<p>${[inner, null, 1]}</p>`.text, `<p><b title="${escaped}">${escaped}</b>1</p>`);
});

test('a description may have paragraphs, code and bold text, and nothing else', () => {
  const text = 'Waits for `?wait=<state>`.\n\n**Access**: *any* [link](x) ** `';
  assert.equal(
    html`${prose(text)}`.text,
    '<p>Waits for <code>?wait=&lt;state&gt;</code>.</p><p><strong>Access</strong>: *any* [link](x) ** `</p>',
  );
  assert.equal(html`${joined(['a', inline('`b`')], ', ')}`.text, 'a, <code>b</code>');
});

const ACCESS = { kind: 'any', scope: null, roles: null, sudo: false, service_accounts: true } as const;
const OPERATION: OperationObject = {
  operationId: 'changeIt',
  summary: 'Change it',
  tags: [],
  responses: {},
  security: [],
  'x-access': ACCESS,
};

/** The words that a shell makes of the command. */
function wordsOf(command: string): string[] {
  const env = {
    PATH: process.env['PATH'],
    BERTH_API_KEY: 'key',
    BERTH_SESSION: 'session',
    BERTH_SUDO: 'sudo',
    ID: 'x_1',
  };
  const script = `curl() { printf '%s\\0' "$@"; }\n${command}\n`;
  return execFileSync('sh', ['-c', script], { env, encoding: 'utf8' }).split('\0').slice(0, -1);
}

test('a shell reads the address, the credential and the body as they are meant', () => {
  const body = { name: `it's "$HOME" \`id\` \\`, lines: 'a\nb' };
  const requestBody = { content: { 'application/json': { schema: {}, example: body } } };
  const operation = { ...OPERATION, requestBody };
  const words = wordsOf(
    curlExample({ origin: 'http://x:1', method: 'patch', path: '/v1/things/{id}', operation }),
  );
  assert.deepEqual(words.slice(0, -1), [
    ...['-X', 'PATCH', 'http://x:1/v1/things/x_1'],
    ...['-H', 'Authorization: Bearer key', '-H', 'Content-Type: application/json', '-d'],
  ]);
  assert.deepEqual(JSON.parse(words.at(-1) ?? ''), body);
});

test('a session and its sudo grant are named where only they have access, and nothing where no credential is needed', () => {
  const called = { origin: 'http://x:1', method: 'delete', path: '/v1/me' };
  const access = { ...ACCESS, kind: 'session', sudo: true } as const;
  assert.deepEqual(wordsOf(curlExample({ ...called, operation: { ...OPERATION, 'x-access': access } })), [
    ...['-X', 'DELETE', 'http://x:1/v1/me', '-H', 'Authorization: Bearer session'],
    ...['-b', '__Secure-berth_sudo=sudo'],
  ]);
  const open = { ...OPERATION, 'x-access': { ...ACCESS, kind: 'public' } as const };
  assert.deepEqual(wordsOf(curlExample({ ...called, method: 'get', operation: open })), ['http://x:1/v1/me']);
});
