/** A command that changes a part of what it has read loses nothing that somebody else changes at the same moment. */
import assert from 'node:assert/strict';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { apiForFile, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();
const who = await api.person();
const { key } = await makeKey(api.db, who, '*');
const direct = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });

/** A command line whose first change reaches the server only after `between`. */
async function withChangeBetween(between: () => Promise<unknown>): Promise<Cli> {
  let is_first = true;
  const proxy = createServer(async (request, response) => {
    const body = await bodyOf(request);
    if (is_first && ['PATCH', 'PUT'].includes(request.method ?? '')) {
      is_first = false;
      await between();
    }
    const { host: _host, connection: _connection, ...headers } = request.headers;
    const answer = await fetch(api.origin + request.url, {
      method: request.method ?? 'GET',
      headers: headers as Record<string, string>,
      ...(body === '' ? {} : { body }),
    });
    const etag = answer.headers.get('etag');
    const type = answer.headers.get('content-type') ?? 'application/json';
    response.writeHead(answer.status, { 'content-type': type, ...(etag === null ? {} : { etag }) });
    response.end(await answer.text());
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  after(() => proxy.close());
  const { port } = proxy.address() as AddressInfo;
  return new Cli({ BERTH_URL: `http://127.0.0.1:${port}`, BERTH_API_KEY: key });
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

const allowed = async (name: string) =>
  (await direct.json<{ egress: { allow: string[] } }>('show', name)).egress.allow;

test('two people allow a host each: the list has both', async () => {
  const name = newName();
  await direct.done('create', name, '--egress', 'allow', '--allow', 'first.example.com');
  const slow = await withChangeBetween(() => direct.done('egress', name, 'allow', 'theirs.example.com'));
  await slow.done('egress', name, 'allow', 'mine.example.com');
  assert.deepEqual(await allowed(name), ['first.example.com', 'theirs.example.com', 'mine.example.com']);
});

test('a host that is removed stays removed while another one is allowed', async () => {
  const name = newName();
  await direct.done('create', name, '--egress', 'allow', '--allow', 'old.example.com');
  const slow = await withChangeBetween(() => direct.done('egress', name, 'allow', 'new.example.com'));
  await slow.done('egress', name, 'remove', 'old.example.com');
  assert.deepEqual(await allowed(name), ['new.example.com']);
});

test('two kinds of mail are switched at once: both stay switched', async () => {
  const slow = await withChangeBetween(() => direct.done('notification', 'mail', 'vm.recovered', 'off'));
  await slow.done('notification', 'mail', 'vm.failed', 'off');
  const { mail } = await direct.json<{ mail: Record<string, boolean> }>('notification', 'mail');
  assert.deepEqual([mail['vm.failed'], mail['vm.recovered']], [false, false]);
});
