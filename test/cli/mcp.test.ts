/** `berth mcp`, started as a client of MCP starts it. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { apiForFile, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { McpClient, REVISIONS, type Revision } from '../support/mcp-client.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();
const owner = await api.person();
const { key } = await makeKey(api.db, owner, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });

async function overStdio(context: TestContext, env: Record<string, string>, revision?: Revision) {
  const client = await McpClient.overStdio(env, revision);
  context.after(() => client.close());
  return client;
}

for (const revision of REVISIONS) {
  test(`${revision}: has the tools of /mcp, and calls the API with the login`, async (context) => {
    const stdio = await overStdio(context, cli.env, revision);
    const http = await McpClient.overHttp(api.origin, key, { revision });
    assert.deepEqual((await stdio.client.listTools()).tools, (await http.client.listTools()).tools);
    assert.equal(stdio.client.getInstructions(), http.client.getInstructions());
    const name = newName();
    await stdio.done('create_instance', { name, start: false });
    assert.match((await http.done('get_instance', { instance: name })).text, /: stopped/);
    assert.match(await stdio.fails('get_instance', { instance: 'nothing' }), /^NOT_FOUND: /);
  });
}

test('ends with code 0 when its client closes stdin, and prints nothing but the protocol', async () => {
  const { code, out, err } = await cli.run(['mcp']);
  assert.deepEqual({ code, out, err }, { code: 0, out: '', err: '' });
});

test('a server that does not answer is a tool error', async (context) => {
  const client = await overStdio(context, { ...cli.env, BERTH_URL: 'http://127.0.0.1:9' });
  assert.match(await client.fails('list_instances'), /^NO_ANSWER: .*\nNext: try again; /);
});

test('without a login it says how to log in, and exits with 4', async () => {
  const { BERTH_API_KEY: _none, ...env } = cli.env;
  const stranger = new Cli({ BERTH_URL: env['BERTH_URL'] ?? '' });
  assert.match(await stranger.fails(4, 'mcp'), /you are not logged in .*\n {2}next: berth login/s);
});
