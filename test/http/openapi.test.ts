/** The API document: committed as the routes say it, and of the shape that readers of OpenAPI 3.1 expect. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { OPENAPI_PATH, openApiText } from '../../src/http/write-openapi.ts';
import { type Document, endpointsOf } from '../support/openapi.ts';

const text = await openApiText();
const document = JSON.parse(text) as Document;
const endpoints = endpointsOf(document);

test('openapi/v1.json is what the routes say (if not: node src/http/write-openapi.ts)', async () => {
  assert.equal(await readFile(OPENAPI_PATH, 'utf8'), text);
});

test('the document is the same each time it is made', async () => {
  assert.equal(await openApiText(), text);
});

test('it is OpenAPI 3.1 with title, version and one way to authenticate', () => {
  assert.match(document.openapi, /^3\.1\.\d+$/);
  assert.equal(document.info.title, 'Berth');
  assert.ok(document.info.version);
  assert.deepEqual(document.security, [{ bearer: [] }]);
  assert.deepEqual(Object.keys(document.components.securitySchemes), ['bearer']);
});

test('every path is under /v1 and every operation has a name of its own, a summary and one tag', () => {
  assert.ok(endpoints.length > 0);
  const names = new Set<string>();
  for (const { name, path, operation } of endpoints) {
    assert.match(path, /^\/v1(\/[a-z0-9.-]+|\/\{[a-z_]+\})+$/, name);
    assert.match(operation.operationId, /^[a-z][A-Za-z0-9]+$/, name);
    assert.ok(!names.has(operation.operationId), `${operation.operationId} is there twice`);
    names.add(operation.operationId);
    assert.ok(operation.summary, name);
    assert.equal(operation.tags.length, 1, name);
  }
});

test('the parameters of a path are those that it declares', () => {
  for (const { name, path, operation } of endpoints) {
    const declared = (operation.parameters ?? [])
      .filter((each) => each.in === 'path')
      .map((each) => each.name);
    const used = [...path.matchAll(/\{([a-z_]+)\}/g)].map((match) => match[1]);
    assert.deepEqual(declared, used, name);
  }
});

test('every operation declares a success, and the errors that any caller can meet, in the one shape', () => {
  for (const { name, operation } of endpoints) {
    const statuses = Object.keys(operation.responses);
    assert.ok(
      statuses.some((status) => /^2\d\d$/.test(status)),
      name,
    );
    const is_public = operation.security?.length === 0;
    for (const status of ['400', '401', ...(is_public ? [] : ['403']), '500', '503']) {
      assert.ok(statuses.includes(status), `${name} does not declare ${status}`);
    }
    for (const [status, response] of Object.entries(operation.responses)) {
      assert.ok(response.description, `${name} ${status}`);
      if (status < '400') continue;
      const shown = JSON.stringify(response.content);
      for (const field of ['code', 'message', 'request_id'])
        assert.ok(shown.includes(`"${field}"`), `${name} ${status}`);
    }
  }
});

test('an operation on one resource declares 404', () => {
  for (const { name, path, operation } of endpoints) {
    if (path.includes('{')) assert.ok('404' in operation.responses, name);
  }
});
