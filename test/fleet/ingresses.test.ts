/** Two ingresses: one beside the control plane, and the program of another machine, which joins over TLS. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  request,
  type ServerResponse,
} from 'node:http';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { addIngress, removeIngress, showIngresses } from '../../src/cli/server/fleet.ts';
import { stopIdle } from '../../src/control-plane/vms/stop-vm.ts';
import { Ingress } from '../../src/ingress/ssh-ingress.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { parseJoinToken } from '../../src/protocol/protocol.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { joinStreams } from '../../src/shared/streams.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { inheritedEnvironment } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { makeKey } from '../support/people.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { listen, readAll, target } from '../support/sockets.ts';
import { stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'src', 'main.ts');
const [NEAR, FAR, OTHER] = ['127.0.0.1', '127.0.0.2', '127.0.0.3'];
const log = createLog('test', 'silent');

const first_port = await ownPort();
const api = await apiForFile({ ssh_hosts: ['ssh.example.org'], first_port, last_port: first_port + 7 });
const owner = await api.person();
const client = api.as(owner);
const machines = await listenToRemoteHosts(api);
const folder = mkdtempSync(join(tmpdir(), 'bt-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const { agent } = await machines.join('far', { cpus: '64', memory: '4096' });
let token: string;

before(async () => {
  await agent.connect({ ...FACTS, memory_mib: 4096 * 1024 });
  // All VMs run there.
  await api.db.updateTable('hosts').set({ cordoned: true }).where('id', '=', api.host_id).execute();
  token = await addIngress(machines.server, 'front');
});

/** Starts the program of the ingress on another machine; it is killed at the end of the test. */
function startFar(t: TestContext, address = FAR, its_token = token) {
  const token_path = join(folder, `token-${address}`);
  writeFileSync(token_path, its_token, { mode: 0o600 });
  const child = spawn(process.execPath, [MAIN, 'ingress'], {
    env: {
      ...inheritedEnvironment(),
      BERTH_DATA_DIR: join(folder, `data-${address}`),
      BERTH_CONTROL_PLANE: machines.origin,
      BERTH_INGRESS_TOKEN_FILE: token_path,
      BERTH_LOG_LEVEL: 'error',
      BERTH_SSH_LISTEN: address,
      BERTH_HTTP_LISTEN: `${address}:${first_port + 20}`,
    },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  t.after(() => child.kill('SIGKILL'));
  return child;
}

/** Runs the ingress of this machine until the end of the test. */
function startNear(t: TestContext): void {
  const ended = new AbortController();
  const near = new ControlPlaneClient({ address: api.internal_origin, token: api.ingress_token });
  const running = new Ingress({ listen: { every: NEAR, by_name: null }, client: near, log }).run(
    ended.signal,
  );
  t.after(async () => {
    ended.abort();
    await running;
    await near.close();
  });
}

async function runningInstance(change: Record<string, unknown> = {}): Promise<InstanceOut> {
  const instance = await api.instance(owner, change);
  assert.equal((await client.post(`/v1/instances/${instance.id}/vm`)).status, 202);
  await agent.assigned(instance.id);
  await agent.ready(instance.id);
  return instance;
}

/** A connection through the ingress at `host`, to an sshd that echoes. */
async function connectTo(t: TestContext, host: string, port: number): Promise<Socket> {
  const sshd = await target(t, (socket) => socket.pipe(socket));
  const socket = await until(`${host} is open`, async () => {
    const tried = connect({ host, port, allowHalfOpen: true });
    return once(tried, 'connect').then(
      () => tried,
      () => undefined,
    );
  });
  t.after(() => socket.destroy());
  socket.on('error', () => undefined);
  const { id } = await agent.nextCall('ssh');
  joinStreams(
    await agent.client.openConsole(id),
    connect({ host: '127.0.0.1', port: Number(sshd.split(':')[1]), allowHalfOpen: true }),
  );
  return socket;
}

async function echoes(socket: Socket): Promise<boolean> {
  const said = randomBytes(100_000);
  socket.write(said);
  const parts: Buffer[] = [];
  for (let left = said.length; left > 0; ) {
    const [part] = (await once(socket, 'data')) as [Buffer];
    parts.push(part);
    left -= part.length;
  }
  return Buffer.concat(parts).equals(said);
}

test('bytes pass through both ingresses; a killed one ends only its own connections', async (t) => {
  startNear(t);
  const far = startFar(t);
  const { ssh } = await runningInstance();
  const [one, other] = [await connectTo(t, NEAR, ssh.port), await connectTo(t, FAR, ssh.port)];
  assert.equal(await echoes(one), true);
  assert.equal(await echoes(other), true);
  assert.match(await showIngresses(machines.server), /front +up .*\nlocal +up /);
  const cut = readAll(other);
  far.kill('SIGKILL');
  await cut;
  assert.equal(await echoes(one), true, 'the other ingress goes on');
  startFar(t);
  assert.equal(await echoes(await connectTo(t, FAR, ssh.port)), true, 'it is back');
});

test('a VM that is in use through one ingress is not stopped as idle, whatever the other reports', async (t) => {
  startNear(t);
  const far = startFar(t);
  const { id, ssh } = await runningInstance({ idle_timeout_seconds: 60 });
  const longAgo = async () => {
    await sql`update vms set started_at = now() - interval '1 hour', active_at = now() - interval '1 hour'
      where instance_id = ${id}`.execute(api.db);
    await sql`update ingresses set watching_since = now() - interval '1 hour'`.execute(api.db);
  };
  const state = async () => {
    await stopIdle(api.db, log);
    return (await stateOf(api, owner, id as InstanceId)).state;
  };
  const socket = await connectTo(t, FAR, ssh.port);
  await echoes(socket);
  await longAgo();
  // An open connection counts in each report, even if it is quiet.
  await until('it is reported', async () => {
    const vm = await api.db
      .selectFrom('vms')
      .select(sql<boolean>`active_at > now() - interval '1 minute'`.as('used'))
      .where('instance_id', '=', id as InstanceId)
      .executeTakeFirstOrThrow();
    return vm.used;
  });
  assert.equal(await state(), 'running');
  far.kill('SIGKILL');
  await once(far, 'exit');
  await longAgo();
  await sql`update ingresses set reported_at = now() - interval '1 minute' where name = 'front'`.execute(
    api.db,
  );
  assert.equal(await state(), 'running', 'the silent one may still have connections');
  await sql`update ingresses set reported_at = now() - interval '10 minutes' where name = 'front'`.execute(
    api.db,
  );
  const near = api.ingress.reportActivity({ watched_ms: 3_600_000, active: [] }, AbortSignal.timeout(5_000));
  await near;
  assert.equal(await state(), 'stopping');
});

/** An instance whose port 8080 is published, and how to ask for it through an ingress. */
async function published() {
  const { id } = await runningInstance();
  const { body } = await client.post<{ hostname: string }>(`/v1/instances/${id}/ports`, { port: 8080 });
  const { key } = await makeKey(api.db, owner, 'vm:read');
  const ask = async (address: string, headers: Record<string, string>) => {
    const at = { host: address, port: first_port + 20, path: '/some?thing' };
    const asked = request({ ...at, method: 'POST', headers: { ...headers, host: body.hostname } }).end();
    const [response] = (await once(asked, 'response')) as [IncomingMessage];
    return response;
  };
  return { ask, allowed: { authorization: `Bearer ${key}` } };
}

/** A server in the guest, to be closed at the end of the test. Returns its port here. */
async function guestServer(t: TestContext, serve: RequestListener): Promise<number> {
  const guest = createServer(serve);
  t.after(() => {
    guest.closeAllConnections();
    guest.close();
  });
  return listen(guest);
}

/** The host opens the port and a tunnel to it. */
async function openPort(guest_port: number): Promise<void> {
  const open = await agent.nextCall('open_port');
  assert.equal(open.call.port, 8080);
  await agent.client.answerCall({ id: open.id, answer: { result: { address: '198.18.0.1:1' } } });
  // That address leads nowhere from here: the bytes take a tunnel.
  const tunnel = await agent.nextCall('port');
  joinStreams(
    await agent.client.openConsole(tunnel.id),
    connect({ host: '127.0.0.1', port: guest_port, allowHalfOpen: true }),
  );
}

test('a request with a token reaches the port of a VM on another machine, one without a token does not', async (t) => {
  startFar(t);
  const guest_port = await guestServer(t, ({ method, url }, response) => response.end(`${method} ${url}`));
  const { ask, allowed } = await published();
  const refused = await until('the ingress listens', () => ask(FAR, {}).catch(() => undefined));
  assert.equal(refused.statusCode, 401);
  const answer = ask(FAR, allowed);
  await openPort(guest_port);
  const response = await answer;
  assert.deepEqual([response.statusCode, await text(response)], [200, 'POST /some?thing']);
});

test('a response that comes through one ingress goes on when another is killed', async (t) => {
  const answers: ServerResponse[] = [];
  const guest_port = await guestServer(t, (_, response) => {
    response.write('begun');
    answers.push(response);
  });
  const { ask, allowed } = await published();
  const begun = async (address: string) => {
    await until('the ingress listens', () => ask(address, {}).catch(() => undefined));
    const answer = ask(address, allowed);
    await openPort(guest_port);
    const response = await answer;
    await once(response, 'data');
    return response;
  };
  const killed = startFar(t);
  const cut = await begun(FAR);
  startFar(t, OTHER, await addIngress(machines.server, 'front-2'));
  const goes_on = await begun(OTHER);
  cut.on('error', () => undefined);
  killed.kill('SIGKILL');
  await until('it is cut', () => cut.closed);
  assert.equal(cut.complete, false);
  for (const answer of answers) answer.end(' and ended');
  assert.equal(await text(goes_on), ' and ended');
  await removeIngress(machines.server, 'front-2');
});

describe('the token of an ingress', () => {
  const joined = () => parseJoinToken(token) ?? assert.fail('a token');
  const refused = async (
    address: string,
    bearer: string,
    work: (c: ControlPlaneClient) => Promise<unknown>,
  ) => {
    const { fingerprint } = joined();
    const pinned = address.startsWith('https') ? { fingerprint } : {};
    const as = new ControlPlaneClient({ address, token: bearer, ...pinned });
    const error = await work(as).then(() => null, String);
    await as.close();
    return /with (\d+)/.exec(error ?? '')?.[1];
  };
  const { signal } = new AbortController();
  const routes = (c: ControlPlaneClient) => c.routes({ seen: null, blocked: [] }, signal);

  test('is good for the calls of ingresses, over TLS, and for no call of a host', async () => {
    const { token: own } = joined();
    assert.equal(await refused(machines.origin, own, routes), undefined);
    assert.equal(await refused(api.internal_origin, own, routes), '401', 'not on the socket of a machine');
    assert.equal(await refused(machines.origin, api.ingress_token, routes), '401');
    const { id } = await api.instance(owner);
    const of_hosts: ((c: ControlPlaneClient) => Promise<unknown>)[] = [
      (c) => c.heartbeat({ facts: FACTS, disks: [] }),
      (c) => c.poll({ seen: null }, signal),
      (c) => c.head(id),
      (c) => c.dataKeys({ instance_id: id, vm_id: newId('vm'), epoch: 1 }),
      (c) => c.calls({ fresh: true }, signal),
      (c) => c.objectStore(),
    ];
    for (const call of of_hosts) assert.equal(await refused(machines.origin, own, call), '401');
  });

  test('is refused once the ingress is removed', async () => {
    assert.match(await removeIngress(machines.server, 'front'), /Removed front/);
    assert.equal(await refused(machines.origin, joined().token, routes), '401');
    await assert.rejects(removeIngress(machines.server, 'front'), /there is no ingress front/);
    await assert.rejects(removeIngress(machines.server, 'local'), /cannot be removed|no ingress local/);
    assert.doesNotMatch(await showIngresses(machines.server), /front/);
  });
});
