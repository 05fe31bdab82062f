/** The API document equals the committed one, and has the form that readers of OpenAPI 3.1 expect. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { Compile } from 'typebox/schema';
import { OF_PATTERN } from '../../src/control-plane/http/errors.ts';
import { OPENAPI_PATH, openApiText } from '../../src/control-plane/write-openapi.ts';
import { ERROR_CODES } from '../../src/shared/errors.ts';
import { type Document, type Endpoint, endpointsOf, type Media } from '../support/openapi.ts';

const text = await openApiText();
const document = JSON.parse(text) as Document;
const endpoints = endpointsOf(document);

/** The error codes of an operation with this status. */
function codesOf({ operation }: Endpoint, status: string): string[] {
  return Object.keys(operation.responses[status]?.content?.['application/json']?.examples ?? {});
}
function headersOf({ operation }: Endpoint): string[] {
  return (operation.parameters ?? []).filter((each) => each.in === 'header').map((each) => each.name);
}

test('openapi/v1.json is what the routes declare (if not: node src/control-plane/write-openapi.ts)', async () => {
  assert.equal(await readFile(OPENAPI_PATH, 'utf8'), text);
});

test('the document is the same each time it is generated', async () => {
  assert.equal(await openApiText(), text);
});

test('it is OpenAPI 3.1 with title, version, licence, server, and a credential on every route by default', () => {
  assert.match(document.openapi, /^3\.1\.\d+$/);
  assert.equal(document.info.title, 'Berth');
  assert.ok(document.info.version);
  assert.deepEqual(document.security, [{ session: [] }, { api_key: [] }]);
  assert.deepEqual(Object.keys(document.components['securitySchemes'] ?? {}), ['session', 'api_key', 'sudo']);
});

test('the schemas have the names of the public interface, and refer to each other', () => {
  const schemas = document.components['schemas'] ?? {};
  for (const name of [
    ...['SudoGrantRequest', 'SudoGrantResponse', 'CreateApiKeyRequest', 'CreateApiKeyResponse'],
    'ListNotificationsResponse',
    ...['Instance', 'Vm', 'Disk', 'Error', 'User', 'Org', 'ApiKey', 'SshKey'],
  ]) {
    assert.ok(name in schemas, name);
  }
  assert.match(JSON.stringify(schemas['Instance']), /"\$ref":"#\/components\/schemas\/Vm"/);
  const { post } = document.paths['/v1/auth/sudo'] ?? {};
  assert.deepEqual(post?.requestBody?.content['application/json']?.schema, {
    $ref: '#/components/schemas/SudoGrantRequest',
  });
});

test('every path is under /v1, and every operation has a unique name, a summary and one described tag', () => {
  assert.ok(endpoints.length > 0);
  const names = new Set<string>();
  const { tags } = document;
  for (const { name, path, operation } of endpoints) {
    assert.match(path, /^\/v1(\/[a-z0-9.-]+|\/\{[a-z_]+\})+$/, name);
    assert.match(operation.operationId, /^[a-z][A-Za-z0-9]+$/, name);
    assert.ok(!names.has(operation.operationId), `${operation.operationId} is used twice`);
    names.add(operation.operationId);
    assert.ok(operation.summary, name);
    assert.equal(operation.tags.length, 1, name);
    assert.ok(tags.find((tag) => tag.name === operation.tags[0])?.description, name);
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

test('every operation declares a success, and the errors that any call can get, in the common form', () => {
  for (const endpoint of endpoints) {
    const { name, operation, path, method } = endpoint;
    const statuses = Object.keys(operation.responses);
    assert.ok(
      // A redirect of browsers is one too.
      statuses.some((status) => /^(2\d\d|303)$/.test(status)),
      name,
    );
    const is_public = operation.security?.length === 0;
    const needed = [
      ...['400', '429', '500', '503'],
      ...(is_public ? [] : ['401', '403']),
      ...(path.includes('{') ? ['404'] : []),
      ...(method === 'GET' ? [] : ['413', '415']),
    ];
    for (const status of needed) assert.ok(statuses.includes(status), `${name} does not declare ${status}`);
    assert.ok(!(['GET', 'DELETE'].includes(method) && operation.requestBody), `${name} has a body`);
    for (const [status, response] of Object.entries(operation.responses)) {
      assert.ok(response.description, `${name} ${status}`);
      assert.ok(response.headers?.['X-Request-Id'], `${name} ${status}`);
      if (status < '400') continue;
      const codes = codesOf(endpoint, status);
      assert.ok(codes.length > 0, `${name} ${status}`);
      for (const code of codes) {
        assert.equal(String(ERROR_CODES[code as keyof typeof ERROR_CODES].status), status, `${name} ${code}`);
      }
      if (['429', '503', '423'].includes(status)) assert.ok(response.headers['Retry-After'], name);
    }
  }
});

test('each error code is declared by an operation', () => {
  const told = new Set(
    endpoints.flatMap((each) =>
      Object.keys(each.operation.responses).flatMap((status) => codesOf(each, status)),
    ),
  );
  // One is the spelling of the routes of webhooks; the other is answered to upgrades and by the ingress.
  const apart = ['Unauthenticated', 'BAD_GATEWAY'];
  const missing = Object.keys(ERROR_CODES).filter((code) => !told.has(code) && !apart.includes(code));
  assert.deepEqual(missing, []);
});

test('a route takes a nullable Idempotency-Key exactly where it declares its conflicts and replays', () => {
  let taking = 0;
  for (const endpoint of endpoints) {
    const takes = headersOf(endpoint).includes('Idempotency-Key');
    taking += takes ? 1 : 0;
    assert.equal(takes, codesOf(endpoint, '422').includes('IDEMPOTENCY_KEY_REUSED'), endpoint.name);
    assert.equal(takes, codesOf(endpoint, '409').includes('IDEMPOTENCY_IN_PROGRESS'), endpoint.name);
    const success = Object.entries(endpoint.operation.responses).find(([status]) => status < '300');
    assert.equal(takes, success?.[1].headers?.['Idempotency-Replayed'] !== undefined, endpoint.name);
    const header = endpoint.operation.parameters?.find((each) => each.name === 'Idempotency-Key');
    if (header) assert.deepEqual((header.schema as { type: unknown }).type, ['string', 'null']);
  }
  assert.ok(taking >= 9, String(taking));
});

test('If-Match is declared where 412 is', () => {
  for (const endpoint of endpoints) {
    assert.equal(
      headersOf(endpoint).includes('If-Match'),
      '412' in endpoint.operation.responses,
      endpoint.name,
    );
  }
});

test('only destructive routes, and the one that adds a factor, need the session and the sudo cookie', () => {
  const needing = endpoints.filter((each) =>
    (each.operation.security ?? []).some((way) => 'sudo' in (way as object)),
  );
  assert.deepEqual(needing.map((each) => each.operation.operationId).sort(), [
    'addMfaFactor',
    'changeBillingEmail',
    'deleteMe',
    'removeMfaFactor',
    'rotateApiKey',
  ]);
  for (const each of needing) assert.ok(codesOf(each, '403').includes('SUDO_REQUIRED'), each.name);
});

test('every request body and every JSON answer has an example, and the example is valid', () => {
  const check = (where: string, media: Media) => {
    const given = media.examples ? Object.values(media.examples).map((each) => each.value) : [media.example];
    const validator = Compile(media.schema);
    for (const example of given) {
      assert.notEqual(example, undefined, `${where} has no example`);
      const [, errors] = validator.Errors(example);
      assert.ok(validator.Check(example), `${where}: ${JSON.stringify(errors)} ${JSON.stringify(example)}`);
    }
  };
  for (const { name, operation } of endpoints) {
    const body = operation.requestBody?.content['application/json'];
    if (body) check(`${name} body`, body);
    for (const [status, { content }] of Object.entries(operation.responses)) {
      const media = content?.['application/json'];
      if (media) check(`${name} ${status}`, media);
    }
  }
});

test('every pattern of a request has a description', () => {
  const untold = new Set<string>();
  const walk = (value: unknown): void => {
    if (typeof value !== 'object' || value === null) return;
    const { pattern } = value as { pattern?: unknown };
    if (typeof pattern === 'string' && OF_PATTERN[pattern] === undefined) untold.add(pattern);
    for (const each of Object.values(value)) walk(each);
  };
  for (const { operation } of endpoints) {
    walk(operation.parameters?.filter((each) => each.in === 'query'));
  }
  walk(document.components['schemas']);
  // Only answers have it.
  untold.delete('^req_[0-9a-f]{24}$');
  assert.deepEqual([...untold], []);
});
