/** Calls of hosts that a control plane comes to late, after it stood still: their callers have repeated them at another one. */
import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { IncomingMessage } from 'node:http';
import { connect, type Socket } from 'node:net';
import { test } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import { apiForFile } from '../support/api.ts';
import { instanceIn, stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const owner = await api.person();
const { agent } = api;

test('a report whose caller has gone does nothing', async (t) => {
  const { id } = await instanceIn(api, owner, 'running');
  const { vm_id, epoch } = await agent.known(id);
  const body = JSON.stringify({ vm_id, epoch, observed: { kind: 'rebooting' } });
  const head = `Authorization: Bearer ${api.host_token}\r\n${PROTOCOL_HEADER}: ${AGENT_PROTOCOL}\r\nContent-Type: application/json`;
  const served: Socket[] = [];
  const note = (message: unknown) => {
    const { request, socket } = message as { readonly request: IncomingMessage; readonly socket: Socket };
    if (request.url === ROUTES.report.path) served.push(socket);
  };
  subscribe('http.server.request.start', note);
  t.after(() => unsubscribe('http.server.request.start', note));
  await transaction(api.db, async (tx) => {
    // Whoever wants to know the host of a token waits.
    await sql`lock table hosts`.execute(tx);
    const { hostname, port } = new URL(api.internal_origin);
    const socket = connect(Number(port), hostname);
    socket.write(
      `POST ${ROUTES.report.path} HTTP/1.1\r\nHost: x\r\n${head}\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    await until('its call waits', async () => {
      const { rows } = await sql`select from pg_locks where not granted`.execute(api.db);
      return rows.length > 0;
    });
    socket.destroy();
    await until('the control plane knows that it has gone', () => served.some((each) => each.destroyed));
  });
  await agent.observe(id, { kind: 'resumed' });
  assert.equal((await stateOf(api, owner, id)).state, 'running');
});
