/** Every route answers generated bodies, queries, paths and headers in the common form, and never with 500. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { apiForFile } from '../support/api.ts';
import { assertAnyError } from '../support/expect.ts';
import { documentOf, type Endpoint, endpointsOf, type Schema } from '../support/openapi.ts';
import { makeSession, makeSudo } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { tries } from '../support/thorough.ts';

const api = await apiForFile();
const owner = await api.person();
const RUNS = tries(20, 60);

function fieldsOf(schema: Schema | undefined): string[] {
  if (!schema) return [];
  return [...Object.keys(schema.properties ?? {}), ...(schema.anyOf ?? []).flatMap(fieldsOf)];
}

const text = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.constantFrom('', '\0', '\ud800', "' or 1=1 --", '%00', '../..', 'a'.repeat(5_000), '💥', '-1', 'null'),
);
const value = fc.oneof(
  text,
  fc.integer(),
  fc.double(),
  fc.constantFrom(null, true, 1e308, -0, 2 ** 53, [], {}, [[]], { length: 1 }),
  fc.jsonValue({ maxDepth: 3 }),
);

/** Known fields with arbitrary values, among unknown fields. */
function bodyFor({ operation }: Endpoint): fc.Arbitrary<unknown> {
  const schema = operation.requestBody?.content['application/json']?.schema;
  const known = fieldsOf(schema);
  const field = known.length === 0 ? text : fc.oneof(fc.constantFrom(...known), text);
  return fc.oneof({ weight: 4, arbitrary: fc.dictionary(field, value, { maxKeys: 6 }) }, value);
}

function queryFor({ operation }: Endpoint): fc.Arbitrary<string> {
  const known = (operation.parameters ?? []).filter((each) => each.in === 'query').map((each) => each.name);
  const name = known.length === 0 ? text : fc.oneof(fc.constantFrom(...known), text);
  const safe = (raw: string) => encodeURIComponent(raw.toWellFormed());
  const pair = fc.tuple(name, text).map(([key, given]) => `${safe(key)}=${safe(given)}`);
  const raw = fc.constantFrom('%', '%00', '&&&', 'a[b]=c', 'limit', 'limit=%ff', '?', 'cursor=____');
  return fc
    .array(fc.oneof({ weight: 5, arbitrary: pair }, raw), { maxLength: 3 })
    .map((all) => all.join('&'));
}

const header = fc.record(
  {
    'content-type': fc.constantFrom(
      'application/json',
      'text/plain',
      'application/json; charset=utf-16',
      '',
      ';',
    ),
    'berth-org': fc.constantFrom('', 'org_x', '\x7f'.slice(1), owner.org_id, 'é'),
    'user-agent': fc.constantFrom('', 'x'.repeat(3_000), '\xff\xfe'),
    'idempotency-key': fc.constantFrom('', '"', 'x'.repeat(300)),
    'if-match': fc.constantFrom('*', '"', 'W/""'),
    accept: fc.constantFrom('text/html', '*/*', ''),
    'accept-version': fc.constantFrom('2.x', ''),
    range: fc.constantFrom('bytes=0-1', 'x'),
  },
  { requiredKeys: [] },
);

const NO_IDS = ['inst_', 'x', '%00', '%2e%2e', '%ff', "'", 'inst_00000000000000000000000000', '%F0%9F%92%A5'];

for (const endpoint of endpointsOf(documentOf(api.app))) {
  test(`${endpoint.name} never answers 500`, async () => {
    // Stopped, so that no test waits for what a valid call begins.
    const { id: own } = await instanceIn(api, owner, 'stopped');
    const known = fc.constantFrom(own, owner.org_id, owner.user_id);
    const ids = fc.array(fc.oneof({ weight: 3, arbitrary: known }, fc.constantFrom(...NO_IDS)), {
      minLength: 2,
      maxLength: 2,
    });
    await fc.assert(
      fc.asyncProperty(
        bodyFor(endpoint),
        queryFor(endpoint),
        header,
        ids,
        fc.constantFrom('json', 'raw', 'none'),
        async (body, query, headers, [first = '', second = ''], form) => {
          const path = endpoint.path.replace(/\{\w+\}/, first).replace(/\{\w+\}/, second);
          const raw = form === 'raw' ? String(JSON.stringify(body)).slice(1) : JSON.stringify(body);
          const type = form === 'json' ? { 'content-type': 'application/json' } : {};
          // These end all sessions of the caller, or the account.
          const is_final = endpoint.path === '/v1/me' || endpoint.path === '/v1/auth/sessions';
          const caller = is_final ? await api.person() : owner;
          const fresh = await makeSession(api.db, caller.user_id);
          const sudo = await makeSudo(api.db, { ...fresh, user_id: caller.user_id });
          const client = api.as(fresh.session);
          const answer = await client.call(endpoint.method, query === '' ? path : `${path}?${query}`, {
            ...(form === 'none' || endpoint.method === 'GET' ? {} : { raw: raw ?? '' }),
            headers: { ...headers, ...type, ...sudo },
          });
          assert.notEqual(answer.status, 500, answer.text);
          if (answer.status >= 400) {
            assertAnyError(answer);
          }
        },
      ),
      { numRuns: RUNS },
    );
  });
}
