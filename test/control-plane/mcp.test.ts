/** `/mcp` with the SDK's own client: both revisions, the caller's rights, and what HTTP refuses. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile, newName } from '../support/api.ts';
import { McpClient, REVISIONS } from '../support/mcp-client.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile({ context: { trusted_proxies: ['127.0.0.1'] } });
const owner = await api.person();
const stranger = await api.person();
const { key } = await makeKey(api.db, owner, '*');
const mcp = await McpClient.overHttp(api.origin, key);
const { agent } = api;

async function post(
  headers: Record<string, string>,
  body: unknown = PING,
  method = 'POST',
  origin = api.origin,
) {
  const sent = method === 'POST' ? { body: typeof body === 'string' ? body : JSON.stringify(body) } : {};
  return fetch(`${origin}/mcp`, {
    method,
    headers: {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      ...headers,
    },
    ...sent,
  });
}
const PING = { jsonrpc: '2.0', id: 1, method: 'ping' };
const bearer = { authorization: `Bearer ${key}` };

describe('both revisions', () => {
  for (const revision of REVISIONS) {
    test(`${revision}: lists tools, calls one, and opens no session`, async () => {
      const client = await McpClient.overHttp(api.origin, key, { revision });
      const { tools } = await client.client.listTools();
      assert(tools.length >= 15);
      const name = newName();
      assert.equal(
        (await client.done('create_instance', { name, start: false })).text,
        `Created ${name}, stopped.`,
      );
      assert.match((await client.done('list_instances')).text, new RegExp(`^${name}  stopped  `, 'm'));
    });
  }
});

test('GET and DELETE get 405, because there are no sessions', async () => {
  for (const method of ['GET', 'DELETE']) {
    const answer = await post(bearer, null, method);
    assert.equal(answer.status, 405, method);
    assert.equal(answer.headers.get('mcp-session-id'), null);
  }
});

test('no or a wrong credential gets 401', async () => {
  for (const headers of [{}, { authorization: `Bearer ${key.slice(0, -1)}x` }] as Record<string, string>[]) {
    const answer = await post(headers);
    assert.equal(answer.status, 401);
    assert.match(answer.headers.get('www-authenticate') ?? '', /^Bearer/);
  }
});

test("another site's Origin gets 403, an own one is served", async () => {
  assert.equal((await post({ ...bearer, origin: 'https://evil.example' })).status, 403);
  assert.equal((await post({ ...bearer, origin: 'null' })).status, 403);
  assert.equal((await post({ ...bearer, origin: api.origin })).status, 200);
});

test('a body that is too large, or no JSON, is refused before it is served', async () => {
  assert.equal((await post(bearer, { ...PING, padding: 'x'.repeat(1024 * 1024) })).status, 413);
  assert.equal((await post(bearer, '{')).status, 400);
  assert.equal((await post({ ...bearer, 'content-type': 'text/plain' })).status, 415);
});

test('every tool states all hints, and a destructive one what is lost', async () => {
  const { tools } = await mcp.client.listTools();
  for (const { name, title, description = '', annotations = {} } of tools) {
    for (const hint of ['readOnlyHint', 'destructiveHint', 'idempotentHint', 'openWorldHint'] as const)
      assert.equal(typeof annotations[hint], 'boolean', `${name}: ${hint}`);
    assert(title && description.length > 20, name);
    if (annotations.destructiveHint) assert.match(description, /Lost|deleting files|replaces/, name);
    assert(!(annotations.readOnlyHint && annotations.destructiveHint), name);
  }
});

test('an instance that was made, but may not be started, is told', async () => {
  const { key: writing } = await makeKey(api.db, owner, 'instances:read instances:write');
  const client = await McpClient.overHttp(api.origin, writing);
  const name = newName();
  assert.match(
    (await client.done('create_instance', { name })).text,
    new RegExp(`^Created ${name}\\. It is there, but does not run\\. FORBIDDEN: `),
  );
});

test('a key with instances:read alone reads instances, and changes and runs nothing', async () => {
  const { key: reading } = await makeKey(api.db, owner, 'instances:read');
  const client = await McpClient.overHttp(api.origin, reading);
  const { id, name } = await instanceIn(api, owner, 'running');
  assert.match((await client.done('get_instance', { instance: name })).text, /running/);
  for (const [tool, args] of [
    ['exec', { command: 'id' }],
    ['stop_instance', {}],
    ['delete_instance', {}],
    ['flush', {}],
    ['list_ports', {}],
    ['restore_generation', { generation: 0 }],
  ] as const) {
    const said = await client.fails(tool, { instance: id, ...args });
    assert.match(said, /^FORBIDDEN: This needs the scope .*\nNext: ask the user/, tool);
  }
  assert.equal(
    (await api.as(owner).get<{ vm: { state: string } }>(`/v1/instances/${id}`)).body.vm.state,
    'running',
  );
});

test("another organisation's instance is not found, by name and by id", async () => {
  const { id, name } = await api.instance(stranger);
  for (const instance of [id, name])
    for (const tool of ['get_instance', 'start_instance', 'exec', 'delete_instance'])
      assert.match(
        await mcp.fails(tool, { instance, ...(tool === 'exec' ? { command: 'id' } : {}) }),
        /^NOT_FOUND: .*\nNext: check the name with list_instances/,
      );
});

test('what a tool does is in the audit log as any other call, with the address of its caller', async () => {
  const headers = { 'x-forwarded-for': '203.0.113.7' };
  const client = await McpClient.overHttp(api.origin, key, { headers });
  await client.done('create_instance', { name: newName(), start: false });
  const { body } = await api.as(owner).get<{ data: { action: string; ip: string }[] }>('/v1/audit?limit=1');
  assert.deepEqual([body.data[0]?.action, body.data[0]?.ip], ['instance.create', '203.0.113.7']);
});

test('calls of tools count for the rate limit', async () => {
  const limited = await apiForFile({
    context: { rate_limits: { principal: 3, address: 3, changes: 1_000 } },
  });
  const { key } = await makeKey(limited.db, await limited.person(), '*');
  const call = { ...PING, method: 'tools/call', params: { name: 'list_instances', arguments: {} } };
  const answers: [number, string][] = [];
  // Each is a request to /mcp and one to the API.
  for (let sent = 0; sent < 3; sent++) {
    const answer = await post({ authorization: `Bearer ${key}` }, call, 'POST', limited.origin);
    answers.push([answer.status, await answer.text()]);
  }
  assert.deepEqual(
    answers.map(([status]) => status),
    [200, 200, 429],
  );
  assert.match(answers[0]?.[1] ?? '', /There are no such instances/);
  assert.match(answers[1]?.[1] ?? '', /"isError":true/);
  assert.match(answers[1]?.[1] ?? '', /RATE_LIMITED: .*Next: try again in \d+ s/);
});

test('each message of a batch counts for the rate limit', async () => {
  const limited = await apiForFile({
    context: { rate_limits: { principal: 10, address: 10, changes: 1_000 } },
  });
  const { key } = await makeKey(limited.db, await limited.person(), '*');
  const batch = (size: number) =>
    Array.from({ length: size }, (_, id) => ({ ...PING, id, method: 'tools/list' }));
  const sizes = [6, 4, 1];
  const statuses: number[] = [];
  for (const size of sizes)
    statuses.push(
      (await post({ authorization: `Bearer ${key}` }, batch(size), 'POST', limited.origin)).status,
    );
  assert.deepEqual(statuses, [200, 200, 429]);
  const { key: other } = await makeKey(limited.db, await limited.person(), '*');
  const refused = await post({ authorization: `Bearer ${other}` }, batch(11), 'POST', limited.origin);
  assert.equal(refused.status, 429);
  assert.match(await refused.text(), /RATE_LIMITED/);
});

test('parameters that do not fit the protocol are invalid params, in a sentence', async () => {
  const answerTo = async (method: string, params?: object) =>
    (await post(bearer, { ...PING, method, ...(params && { params }) })).text();
  const client = { capabilities: {}, clientInfo: { name: 'a', version: '1' } };
  for (const [text, named] of [
    [await answerTo('initialize', client), 'params.protocolVersion'],
    [await answerTo('initialize', { ...client, protocolVersion: 7 }), 'params.protocolVersion'],
    [await answerTo('initialize'), 'params'],
    [await answerTo('tools/list', { cursor: 5 }), 'params.cursor'],
    [await answerTo('tools/call', { name: 5 }), 'params.name'],
  ] as const) {
    const { error } = JSON.parse(/^data: (.*)$/m.exec(text)?.[1] ?? '') as {
      error: { code: number; message: string };
    };
    assert.equal(error.code, -32602, text);
    assert.match(error.message, new RegExp(`^Invalid [a-z/ ]+: ${named}: Invalid input: expected `));
    assert.doesNotMatch(error.message, /[[{\n]/);
  }
});

test('a wrong argument is a tool error that names it, and calls nothing', async () => {
  assert.match(await mcp.fails('exec', { instance: 'web' }), /command/);
  assert.match(await mcp.fails('get_instance', { instance: 'web', verbose: true }), /additional propert/i);
  assert.match(await mcp.fails('create_instance', { name: 'Not A Label' }), /^INVALID_REQUEST: .*name/);
});

test('a start waits until the VM runs', async () => {
  const { id, name } = await api.instance(owner);
  const starting = mcp.done('start_instance', { instance: name });
  await agent.assigned(id);
  await agent.ready(id);
  assert.equal((await starting).text, `${name} is running.`);
});
