/** A WebSocket to a TCP port of a guest, which the control plane splices with the agent's stream. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { describe, test } from 'node:test';
import { WebSocket } from 'ws';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn, isStillUsed } from '../support/states.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const owner = await api.person();
const { agent } = api;
const running = await instanceIn(api, owner, 'running');

function dial(token: string | null, { id = running.id as string, query = '?port=5432', headers = {} } = {}) {
  const url = `${api.origin.replace('http', 'ws')}/v1/instances/${id}/vm/forward${query}`;
  const authorization = token === null ? {} : { authorization: `Bearer ${token}` };
  return new WebSocket(url, { headers: { ...authorization, ...headers } });
}

/** Status and code of a dial that is refused. */
function refusal(socket: WebSocket): Promise<[number, string]> {
  return new Promise((resolve, reject) => {
    socket.on('error', () => undefined);
    socket.on('open', () => reject(new Error('was let in')));
    socket.on('unexpected-response', (_request, response) => {
      let text = '';
      response.on('data', (chunk: Buffer) => {
        text += chunk;
      });
      response.on('end', () => resolve([response.statusCode ?? 0, JSON.parse(text).error.code]));
    });
  });
}

/** A connection that is open at both ends. */
async function opened(token = owner.session): Promise<{ socket: WebSocket; line: Duplex }> {
  const socket = dial(token);
  const { id, call } = await agent.nextCall('port');
  assert.deepEqual([call.instance_id, call.port], [running.id, 5432]);
  const line = await agent.client.openConsole(id);
  line.allowHalfOpen = true;
  line.on('error', () => undefined);
  await once(socket, 'open');
  return { socket, line };
}

async function closed(socket: WebSocket): Promise<number> {
  const [code] = await once(socket, 'close');
  return code;
}

describe('who may open one', () => {
  test('a session, or a key with vm:write', async () => {
    const { key } = await makeKey(api.db, owner, 'vm:write');
    for (const token of [owner.session, key]) {
      const { socket } = await opened(token);
      socket.close();
      await closed(socket);
    }
  });
  test('401 without a credential, 403 without the scope, 404 in another organisation', async () => {
    assert.deepEqual(await refusal(dial(null)), [401, 'UNAUTHENTICATED']);
    assert.deepEqual(await refusal(dial('berth_live_x')), [401, 'UNAUTHENTICATED']);
    const { key } = await makeKey(api.db, owner, 'vm:read instances:write');
    assert.deepEqual(await refusal(dial(key)), [403, 'FORBIDDEN']);
    const stranger = await api.person();
    assert.deepEqual(await refusal(dial(stranger.session)), [404, 'NOT_FOUND']);
    assert.deepEqual(await refusal(dial(owner.session, { id: newId('inst') })), [404, 'NOT_FOUND']);
    assert.deepEqual(await refusal(dial(owner.session, { id: 'web' })), [404, 'NOT_FOUND']);
  });
  test('403 for a page of another site, 421 under a foreign host name', async () => {
    const foreign = dial(owner.session, { headers: { origin: 'https://evil.example.org' } });
    assert.deepEqual(await refusal(foreign), [403, 'FORBIDDEN']);
    const misdirected = dial(owner.session, { headers: { host: 'evil.example.org' } });
    assert.deepEqual(await refusal(misdirected), [421, 'MISDIRECTED_REQUEST']);
  });
  test('400 for a port out of range, none, two, or another parameter', async () => {
    for (const query of [
      '',
      '?port=',
      '?port=0',
      '?port=65536',
      '?port=5432x',
      '?port=1&port=2',
      '?port=1&x=2',
    ])
      assert.deepEqual(await refusal(dial(owner.session, { query })), [400, 'INVALID_REQUEST'], query);
  });
  test('409 where the VM does not run, 502 where nothing listens', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    assert.deepEqual(await refusal(dial(owner.session, { id })), [409, 'VM_NOT_RUNNING']);
    const refused = refusal(dial(owner.session));
    const call = await agent.nextCall('port');
    const error = { code: 'not_listening', message: 'Nothing listens at port 5432 in the VM.' } as const;
    await agent.client.answerCall({ id: call.id, answer: { error } });
    assert.deepEqual(await refused, [502, 'BAD_GATEWAY']);
  });
});

describe('an open connection', () => {
  test('passes bytes in both directions, unchanged and in order', async () => {
    const { socket, line } = await opened();
    const bytes = randomBytes(3_000_000);
    const received: Buffer[] = [];
    socket.on('message', (data: Buffer) => received.push(data));
    line.pipe(line);
    for (let at = 0; at < bytes.length; at += 50_000) socket.send(bytes.subarray(at, at + 50_000));
    socket.send('end');
    // The echo ends its side after the last byte.
    while (received.at(-1)?.toString() !== 'end') await once(socket, 'message');
    assert.ok(Buffer.concat(received.slice(0, -1)).equals(bytes));
    assert.equal(await closed(socket), 1000);
  });
  test('has two directions that end apart', async () => {
    const { socket, line } = await opened();
    const told = once(socket, 'message') as Promise<[Buffer, boolean]>;
    line.end();
    const [data, is_binary] = await told;
    assert.deepEqual([String(data), is_binary], ['end', false]);
    const heard = once(line, 'data');
    socket.send(Buffer.from('still'));
    assert.equal(String((await heard)[0]), 'still');
    socket.close();
    await closed(socket);
  });
  test('closes with 1000 when both sides have ended, and ends the stream when the caller disconnects', async () => {
    const first = await opened();
    const told = once(first.socket, 'message');
    first.line.destroy();
    assert.equal(String((await told)[0]), 'end');
    first.socket.send('end');
    assert.equal(await closed(first.socket), 1000);
    const second = await opened();
    const ended = once(second.line, 'end');
    second.line.resume();
    second.socket.terminate();
    await ended;
    second.line.destroy();
  });
  test('closes with 1008 once its key is revoked', async () => {
    const { id, key } = await makeKey(api.db, owner, 'vm:write');
    const { socket } = await opened(key);
    await api.db.deleteFrom('api_keys').where('id', '=', id).execute();
    assert.equal(await closed(socket), 1008);
  });
  test('counts as use of the VM', async () => {
    const { socket } = await opened();
    await isStillUsed(api, running.id);
    socket.close();
    await closed(socket);
  });
});
