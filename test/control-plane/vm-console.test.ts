/** The serial console: its log, tickets, and the live line, which the control plane splices with the agent's stream. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request } from 'node:http';
import type { Duplex } from 'node:stream';
import { describe, test } from 'node:test';
import { WebSocket } from 'ws';
import { CONSOLE_PROTOCOL, consoleStreamPath } from '../../src/protocol/host-calls.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { makeKey, makeServiceKey, makeSudo, type Person } from '../support/people.ts';
import { instanceIn, isStillUsed } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const owner = await api.person();
const client = api.as(owner);
const { agent } = api;
const running = await instanceIn(api, owner, 'running');
const path = `/v1/instances/${running.id}/vm/console`;

interface Ticket {
  readonly ticket: string;
  readonly expires_at: string;
}

async function ticketOf(who: Person | string = owner, console_path = path): Promise<string> {
  const { status, body, text } = await api.as(who).post<Ticket>(`${console_path}/ticket`);
  assert.equal(status, 201, text);
  return body.ticket;
}

function dial(ticket: string, headers: Record<string, string> = {}, console_path = path): WebSocket {
  const url = `${api.origin.replace('http', 'ws')}${console_path}/stream?ticket=${ticket}`;
  return new WebSocket(url, { headers });
}

/** Status and code of a dial that is refused. */
function refusal(socket: WebSocket): Promise<[number, string]> {
  return new Promise((resolve, reject) => {
    socket.on('error', () => undefined);
    socket.on('open', () => reject(new Error('was let in')));
    socket.on('unexpected-response', (_request, response) => {
      const id = response.headers['x-request-id'];
      let text = '';
      response.on('data', (chunk: Buffer) => {
        text += chunk;
      });
      response.on('end', () => {
        const { error } = JSON.parse(text);
        const { statusCode: status, headers } = response;
        assert.equal(error.request_id, id);
        assert.equal(headers['www-authenticate'], status === 401 ? 'Bearer' : undefined);
        resolve([response.statusCode ?? 0, error.code]);
      });
    });
  });
}

/** A console that is open at both ends. */
async function opened(who: Person | string = owner): Promise<{ socket: WebSocket; line: Duplex }> {
  const socket = dial(await ticketOf(who));
  const { id, call } = await agent.nextCall('console');
  assert.equal(call.instance_id, running.id);
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  await once(socket, 'open');
  return { socket, line };
}

async function closed(socket: WebSocket): Promise<number> {
  const [code] = await once(socket, 'close');
  return code;
}

describe('GET: the log', () => {
  test("200: the end of the guest's output, as text", async () => {
    const asked = client.get(`${path}?tail_kib=3`);
    const { id, call } = await agent.nextCall('console_log');
    assert.deepEqual(call, { kind: 'console_log', instance_id: running.id, max_bytes: 3072 });
    await agent.client.answerCall({ id, answer: { result: { text: 'berth: \u001b[1mä\r\n' } } });
    const answer = await asked;
    assert.deepEqual([answer.status, answer.text], [200, 'berth: \u001b[1mä\r\n']);
    assert.equal(answer.headers['content-type'], 'text/plain; charset=utf-8');
  });
  test('200: with the time of each line, if the caller wants it', async () => {
    const asked = client.get(`${path}?timestamps=true`);
    const { id, call } = await agent.nextCall('console_log');
    const of = { instance_id: running.id, max_bytes: 65_536, timestamps: true };
    assert.deepEqual(call, { kind: 'console_log', ...of });
    const text = '2026-11-25T09:12:00.000Z up\n- before\n';
    await agent.client.answerCall({ id, answer: { result: { text } } });
    const answer = await asked;
    assert.deepEqual([answer.status, answer.text], [200, text]);
    assertError(await client.get(`${path}?timestamps=yes`), 'INVALID_REQUEST');
  });
  test('200: empty if it never ran', async () => {
    const { id } = await api.instance(owner);
    const answer = await client.get(`/v1/instances/${id}/vm/console`);
    assert.deepEqual([answer.status, answer.text], [200, '']);
  });
  test('400: a length out of range', async () => {
    for (const tail of ['0', '1025', '-1', 'x', ''])
      assertError(await client.get(`${path}?tail_kib=${tail}`), 'INVALID_REQUEST');
  });
  test("404: another organisation's instance, like an unknown one", async () => {
    const stranger = api.as(await api.person());
    const theirs = await stranger.get(path);
    assertError(theirs, 'NOT_FOUND');
    const none = await stranger.get(`/v1/instances/${newId('inst')}/vm/console`);
    assert.deepEqual(withoutRequestId(none), withoutRequestId(theirs));
  });
});

describe('POST ticket', () => {
  test('201 in every state that has a machine, 409 else', async () => {
    for (const state of ['starting', 'running', 'restarting', 'suspending', 'stopping'] as const) {
      const { id } = await instanceIn(api, owner, state);
      await ticketOf(owner, `/v1/instances/${id}/vm/console`);
    }
    for (const state of ['stopped', 'suspended', 'failed'] as const) {
      const { id } = await instanceIn(api, owner, state);
      assertError(await client.post(`/v1/instances/${id}/vm/console/ticket`), 'VM_NOT_RUNNING');
    }
  });
  test('only its hash is stored', async () => {
    const ticket = await ticketOf();
    const rows = await api.db.selectFrom('console_tickets').selectAll().execute();
    assert.ok(rows.length > 0);
    assert.ok(!JSON.stringify(rows.map((row) => row.ticket_hash.toString('latin1'))).includes(ticket));
  });
  test('403 for a credential that may only read', async () => {
    const { key } = await makeKey(api.db, owner, 'vm:read');
    assertError(await api.as(key).post(`${path}/ticket`), 'FORBIDDEN');
  });
});

describe('the live console', () => {
  test('bytes pass unchanged in both directions', async () => {
    const { socket, line } = await opened();
    const all = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    line.write(all);
    const [received, binary] = await once(socket, 'message');
    assert.deepEqual([received, binary], [all, true]);
    socket.send(all);
    socket.send('é');
    let typed = Buffer.alloc(0);
    line.on('data', (chunk: Buffer) => {
      typed = Buffer.concat([typed, chunk]);
    });
    await until('all is typed', () => typed.length === 258);
    assert.deepEqual(typed, Buffer.concat([all, Buffer.from('é')]));
    socket.close();
    await once(line, 'close');
  });
  test('a reader that reads nothing makes the guest wait, and loses nothing', async () => {
    const { socket, line } = await opened();
    socket.pause();
    const sent = 4 * 1024 * 1024;
    line.write(Buffer.alloc(sent, 'x'));
    let received = 0;
    socket.on('message', (data: Buffer) => {
      received += data.length;
    });
    socket.resume();
    await until('all has arrived', () => received === sent);
    socket.close();
  });
  test('an open console counts as use of the VM', async () => {
    const { socket } = await opened();
    await isStillUsed(api, running.id);
    socket.close();
  });
  test('it closes when the VM ends', async () => {
    const { socket, line } = await opened();
    line.destroy();
    assert.equal(await closed(socket), 1000);
  });
  test('it closes when its credential is revoked: a key, a session, a membership', async () => {
    const { key, id } = await makeKey(api.db, owner, 'vm:write');
    const by_key = await opened(key);
    await api.db.deleteFrom('api_keys').where('id', '=', id).execute();
    assert.equal(await closed(by_key.socket), 1008);
    const member = await api.person({ org_id: owner.org_id, role: 'member' });
    const by_session = await opened(member);
    assertOk(await api.as(member).post('/v1/auth/logout'));
    assert.equal(await closed(by_session.socket), 1008);
    const leaver = await api.person({ org_id: owner.org_id, role: 'member' });
    const by_member = await opened(leaver);
    const changed = { role: 'billing' as const };
    await api.db.updateTable('memberships').set(changed).where('user_id', '=', leaver.user_id).execute();
    assert.equal(await closed(by_member.socket), 1008);
  });
  test('it closes when its key is rotated: at once, or after the grace; an unused ticket becomes invalid', async () => {
    const rotate = async (who: Person, id: string, grace_seconds: number) => {
      const options = { json: { grace_seconds }, headers: await makeSudo(api.db, who) };
      assertOk(await api.as(who).call('POST', `/v1/api-keys/${id}/rotate`, options));
    };
    const made = await makeKey(api.db, owner, 'vm:write');
    const { socket } = await opened(made.key);
    const ticket = await ticketOf(made.key);
    await rotate(owner, made.id, 60);
    await isStillUsed(api, running.id);
    assert.equal(socket.readyState, WebSocket.OPEN);
    const over = { previous_expires_at: new Date(Date.now() - 1) };
    const by_secret = closed(socket);
    await api.db.updateTable('api_keys').set(over).where('id', '=', made.id).execute();
    assert.equal(await by_secret, 1008);
    assert.deepEqual(await refusal(dial(ticket)), [401, 'UNAUTHENTICATED']);
    const service = await makeServiceKey(api.db, owner.org_id, 'vm:write');
    const by_service = await opened(service.key);
    const at_once = closed(by_service.socket);
    await rotate(owner, service.id, 0);
    assert.equal(await at_once, 1008);
  });
  test('a ticket is for one connection, of its instance, within its time', async () => {
    const used = await ticketOf();
    const first = dial(used);
    const { id } = await agent.nextCall('console');
    await agent.client.openConsole(id);
    await once(first, 'open');
    assert.deepEqual(await refusal(dial(used)), [401, 'UNAUTHENTICATED']);
    first.close();
    const other = await instanceIn(api, owner, 'running');
    const elsewhere = `/v1/instances/${other.id}/vm/console`;
    assert.deepEqual(await refusal(dial(await ticketOf(), {}, elsewhere)), [401, 'UNAUTHENTICATED']);
    const old = await ticketOf();
    await api.db
      .updateTable('console_tickets')
      .set({ expires_at: new Date(0) })
      .execute();
    assert.deepEqual(await refusal(dial(old)), [401, 'UNAUTHENTICATED']);
    for (const wrong of ['', 'x', owner.session])
      assert.deepEqual(await refusal(dial(wrong)), [401, 'UNAUTHENTICATED']);
  });
  test('a ticket is no credential', async () => {
    assertError(await api.as(await ticketOf()).get('/v1/me'), 'UNAUTHENTICATED');
  });
  test('a page of another site is refused, a page of this server is not', async () => {
    assert.deepEqual(await refusal(dial(await ticketOf(), { origin: 'https://evil.example' })), [
      403,
      'FORBIDDEN',
    ]);
    const socket = dial(await ticketOf(), { origin: api.context.public_url });
    const upgraded = once(socket, 'upgrade');
    await agent.client.openConsole((await agent.nextCall('console')).id);
    const [response] = await upgraded;
    assert.match(response.headers['x-request-id'], /^req_[0-9a-f]{24}$/);
    socket.close();
  });
  test('409 when the VM has ended meanwhile, 404 for an unknown instance', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const ticket = await ticketOf(owner, `/v1/instances/${id}/vm/console`);
    await agent.failed(id);
    assert.deepEqual(await refusal(dial(ticket, {}, `/v1/instances/${id}/vm/console`)), [
      409,
      'VM_NOT_RUNNING',
    ]);
    assert.deepEqual(await refusal(dial(ticket, {}, '/v1/instances/x/vm/console')), [404, 'NOT_FOUND']);
  });
  test('400 for a malformed handshake, and the console that was opened for it is closed', async () => {
    const headers = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13' };
    const asked = request(`${api.origin}${path}/stream?ticket=${await ticketOf()}`, { headers }).end();
    const answered = once(asked, 'response');
    const line = await agent.client.openConsole((await agent.nextCall('console')).id);
    line.on('error', () => undefined);
    await once(line, 'close');
    const [response] = await answered;
    const text = await response.reduce((all: string, chunk: Buffer) => all + chunk, '');
    assert.deepEqual([response.statusCode, JSON.parse(text).error.code], [400, 'INVALID_REQUEST']);
  });
  test('a message beyond 64 KiB closes it', async () => {
    const { socket } = await opened();
    socket.on('error', () => undefined);
    socket.send(Buffer.alloc(65_537));
    assert.ok([1006, 1009].includes(await closed(socket)));
  });
});

test('a request that offers another upgrade is served without it', async () => {
  const headers = {
    authorization: `Bearer ${owner.session}`,
    connection: 'Upgrade, HTTP2-Settings',
    upgrade: 'h2c',
  };
  const asked = request(`${api.origin}/v1/instances/${running.id}`, { headers }).end();
  const [response] = await once(asked, 'response');
  assert.equal(response.statusCode, 200);
  response.resume();
});

test("the stream of an agent needs a host's token and an own call", async () => {
  const statusOf = async (to: string, token: string) => {
    const headers = {
      ...{ authorization: `Bearer ${token}`, connection: 'Upgrade', upgrade: CONSOLE_PROTOCOL },
      [PROTOCOL_HEADER]: AGENT_PROTOCOL,
    };
    const [response] = await once(request(api.internal_origin + to, { headers }).end(), 'response');
    response.resume();
    return response.statusCode;
  };
  const socket = dial(await ticketOf());
  const { id } = await agent.nextCall('console');
  assert.equal(await statusOf(consoleStreamPath(id), 'x'.repeat(64)), 401);
  assert.equal(await statusOf('/internal/v1/calls/stream', api.host_token), 404);
  const line = await agent.client.openConsole(id);
  await once(socket, 'open');
  const none = await agent.client.openConsole('00000000-0000-0000-0000-000000000000');
  await once(none, 'close');
  line.destroy();
});

function assertOk({ status, text }: { status: number; text: string }): void {
  assert.ok(status < 300, text);
}
