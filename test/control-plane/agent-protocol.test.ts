/** Versions of the agent protocol: a control plane serves its own and the one before, and tells others which it speaks. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { request as httpsRequest } from 'node:https';
import type { AddressInfo } from 'node:net';
import { after, before, test } from 'node:test';
import { Agent, request } from 'undici';
import { listHosts } from '../../src/cli/server/hosts.ts';
import {
  ControlPlaneClient,
  ControlPlaneUnavailable,
  type Negotiated,
  ProtocolRefused,
} from '../../src/protocol/client.ts';
import { CONSOLE_PROTOCOL, consoleStreamPath } from '../../src/protocol/host-calls.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER, refusalOf, servedBy } from '../../src/protocol/protocol.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import { apiForFile } from '../support/api.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS, type ScriptedAgent } from '../support/scripted-agent.ts';

const api = await apiForFile();
const far = await listenToRemoteHosts(api);
const tls = new Agent({ connect: { ca: far.cert, checkServerIdentity: () => undefined } });
after(() => tls.destroy());
let agent: ScriptedAgent;
let token: string;

before(async () => {
  ({ agent, token } = await far.join('rack-2', { cpus: '4', memory: '8' }));
  await agent.connect();
});

/** A heartbeat of a host whose agent speaks `protocol`. */
async function beat(protocol: string | null) {
  const answer = await request(far.origin + ROUTES.heartbeat.path, {
    method: 'POST',
    dispatcher: tls,
    headers: {
      ...{ authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      ...(protocol === null ? {} : { [PROTOCOL_HEADER]: protocol }),
    },
    body: JSON.stringify({ facts: FACTS, disks: [] }),
  });
  const { error } = (await answer.body.json()) as { error?: { code: string; message: string } };
  return { status: answer.statusCode, theirs: answer.headers[PROTOCOL_HEADER], error };
}

test('a control plane serves its own version and the one before, and no other', () => {
  assert.deepEqual([servedBy(1), servedBy(2), servedBy(3)], [[1], [2, 1], [3, 2]]);
  assert.deepEqual(
    [4, 3, 2, 1].map((said) => refusalOf(said, servedBy(3))),
    [
      'The control plane speaks versions 3 and 2 of the agent protocol, and this host speaks version 4. Upgrade the control plane.',
      null,
      null,
      'The control plane speaks versions 3 and 2 of the agent protocol, and this host speaks version 1. Upgrade Berth on this host.',
    ],
  );
});

test("an agent of each version that is served gets the control plane's version", async () => {
  for (const version of servedBy(AGENT_PROTOCOL)) {
    const { status, theirs } = await beat(String(version));
    assert.deepEqual([status, theirs], [200, String(AGENT_PROTOCOL)]);
    assert.match(await listHosts(far.server), /^rack-2 +up/m);
  }
});

test('other versions are refused with an error that names both versions; berth host ls says so too, until the agent is updated', async () => {
  const newer = AGENT_PROTOCOL + 1;
  const ours = `speaks version ${AGENT_PROTOCOL} of the agent protocol`;
  const cases = [
    [String(newer), `and this host speaks version ${newer}. Upgrade the control plane.`],
    ['1000000000', 'and this host sent none. Upgrade Berth on this host.'],
    ['two', 'and this host sent none. Upgrade Berth on this host.'],
    [null, 'and this host sent none. Upgrade Berth on this host.'],
  ] as const;
  for (const [version = null, why] of cases) {
    const { status, theirs, error } = await beat(version);
    const message = `The control plane ${ours}, ${why}`;
    assert.deepEqual([status, theirs], [426, String(AGENT_PROTOCOL)]);
    assert.deepEqual(error, { code: 'PROTOCOL_REFUSED', message });
    const listed = await listHosts(far.server);
    assert.match(listed, /^rack-2 +refused/m);
    assert(listed.includes(`rack-2 is refused. ${message}`), listed);
  }
  await agent.heartbeat();
  assert.match(await listHosts(far.server), /^rack-2 +up/m);
});

test('the token is checked before the version, and streams are refused like calls', async () => {
  const path = consoleStreamPath('00000000-0000-4000-8000-000000000000');
  const statusOf = async (bearer: string) => {
    const headers = {
      ...{ authorization: `Bearer ${bearer}`, connection: 'Upgrade', upgrade: CONSOLE_PROTOCOL },
      [PROTOCOL_HEADER]: String(AGENT_PROTOCOL + 1),
    };
    const options = { ca: far.cert, checkServerIdentity: () => undefined, headers };
    const [response] = await once(httpsRequest(far.origin + path, options).end(), 'response');
    response.resume();
    return response.statusCode;
  };
  assert.equal(await statusOf('x'.repeat(60)), 401);
  assert.equal(await statusOf(token), 426);
  await agent.heartbeat();
});

/** A control plane that gives the answers it is given, and the client's version of what it said. */
async function answeredBy(answers: readonly { status: number; protocol?: string; body: string }[]) {
  const said: (string | undefined)[] = [];
  const left = [...answers];
  const server = createServer((incoming, response) => {
    said.push(incoming.headers[PROTOCOL_HEADER] as string | undefined);
    incoming.resume();
    const { status, protocol, body } = left.shift() ?? { status: 500, body: '' };
    response.writeHead(status, protocol === undefined ? {} : { [PROTOCOL_HEADER]: protocol }).end(body);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const found: Negotiated[] = [];
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const client = new ControlPlaneClient({ address, token: 'x' }, (each) => found.push(each));
  after(async () => {
    await client.close();
    server.close().closeAllConnections();
  });
  return { client, found, said };
}

test("an agent sends its version with each call, and logs the control plane's once, and again when it changes", async () => {
  const refusal =
    'The control plane speaks versions 9 and 8 of the agent protocol, and this host speaks another.';
  const refused = {
    status: 426,
    protocol: '9',
    body: JSON.stringify({ error: { code: 'PROTOCOL_REFUSED', message: refusal } }),
  };
  const served = { status: 200, protocol: String(AGENT_PROTOCOL), body: '{"mark":null}' };
  const { client, found, said } = await answeredBy([refused, refused, served, served]);
  for (let i = 0; i < 2; i++) {
    // As a control plane that is away: VMs run on, and what was to be said is said later.
    await assert.rejects(client.objectStore(), (error: Error) => {
      assert(error instanceof ProtocolRefused && error instanceof ControlPlaneUnavailable);
      assert.equal(error.message, refusal);
      return true;
    });
  }
  for (let i = 0; i < 2; i++) assert.deepEqual(await client.objectStore(), { mark: null });
  assert.deepEqual(said, Array(4).fill(String(AGENT_PROTOCOL)));
  assert.deepEqual(found, [
    { ours: AGENT_PROTOCOL, theirs: 9, refusal },
    { ours: AGENT_PROTOCOL, theirs: AGENT_PROTOCOL, refusal: null },
  ]);
});

test('a truncated or malformed response counts as no response', async () => {
  const bodies = ['', '{"mark":', '[]', '{"mark":5}', '{}', 'null'];
  const { client } = await answeredBy(bodies.map((body) => ({ status: 200, body })));
  for (const _ of bodies) await assert.rejects(client.objectStore(), ControlPlaneUnavailable);
});
