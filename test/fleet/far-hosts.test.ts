/** Remote hosts: joining, the pinned certificate, tunnels to their VMs, and removal. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, type TestContext, test } from 'node:test';
import { Berth } from '../../client/src/berth.ts';
import type { ServerContext } from '../../src/cli/server/context.ts';
import { addHost, cordonHost, listHosts, removeHost } from '../../src/cli/server/hosts.ts';
import { parseConfig } from '../../src/config/config.ts';
import { pathsIn } from '../../src/config/paths.ts';
import { listLiveHosts } from '../../src/control-plane/fleet/host-store.ts';
import { hostsCertificate } from '../../src/control-plane/fleet/hosts-certificate.ts';
import { expireHosts, LeaseMonitor, marginMs } from '../../src/control-plane/fleet/lease-monitor.ts';
import { createInternalApp } from '../../src/control-plane/internal/app.ts';
import { listRoutes } from '../../src/control-plane/vms/route-store.ts';
import { Ingress } from '../../src/ingress/ssh-ingress.ts';
import { ensureSecrets, makeDataFolder } from '../../src/launcher/data-folder.ts';
import { ControlPlaneClient, ControlPlaneUnavailable } from '../../src/protocol/client.ts';
import { DEFAULT_LEASE_MS } from '../../src/protocol/types.ts';
import { createLog } from '../../src/shared/log.ts';
import { joinStreams } from '../../src/shared/streams.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { serveGuestFiles } from '../support/guest-files.ts';
import { joinWith } from '../support/remote-hosts.ts';
import { FACTS, ScriptedAgent } from '../support/scripted-agent.ts';
import { dial, readAll, target } from '../support/sockets.ts';
import { onlyOn, stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const owner = await api.person();
const log = createLog('test', 'silent');
const data_dir = mkdtempSync(join(tmpdir(), 'bt-'));
const paths = pathsIn(data_dir);
const FLEET = { BERTH_HOSTS_LISTEN: '0.0.0.0:7500', BERTH_S3_BUCKET: 'berth' };
/** On the server, as `bin/berth` loads it with these settings. */
function onServer(settings: Record<string, string> = FLEET): ServerContext {
  const parsed = parseConfig({ BERTH_DATA_DIR: data_dir, ...settings }, '/');
  assert(parsed.ok);
  const { database, db, secret_key, context } = api;
  const { root_key, audit } = context;
  return { config: parsed.config, paths, database_url: database.url, secret_key, root_key, db, audit };
}
let origin: string;
let token: string;
let joined: { readonly token: string; readonly fingerprint: string };
let far: ScriptedAgent;

before(async () => {
  await makeDataFolder(paths);
  await ensureSecrets(paths, null, false);
  const tls = await hostsCertificate(api.db, api.context.root_key);
  assert.deepEqual(await hostsCertificate(api.db, api.context.root_key), tls, 'made once');
  const app = createInternalApp({ ...api.context, host_lease_ms: 40_000 }, tls);
  origin = await app.listen({ host: '127.0.0.1', port: 0 });
  api.beforeClose(async () => {
    api.context.host_calls.close();
    await app.close();
  });
});
after(() => rmSync(data_dir, { recursive: true, force: true }));

test('a host is added on the server if it listens for hosts, and its token is shown once', async () => {
  await assert.rejects(addHost(onServer({}), 'far'), /BERTH_HOSTS_LISTEN is not set/);
  await assert.rejects(addHost(onServer(), 'Far_1'), /each a-z, 0-9 or -/);
  token = (await addHost(onServer(), 'far', { cpus: '64', memory: '4096' })).trim();
  await assert.rejects(addHost(onServer(), 'far'), /there is a host far already/);
  assert.match(await listHosts(onServer()), /far +expected/);
  const kept = JSON.stringify(await api.db.selectFrom('hosts').selectAll().execute());
  assert(!kept.includes(token.slice(0, 60)), 'at rest there is a hash');
});

test('a host joins over TLS, and trusts only the certificate in its token', async () => {
  joined = await joinWith(origin, token);
  far = new ScriptedAgent(origin, joined.token, joined.fingerprint);
  api.beforeClose(() => far.close());
  await far.connect({ ...FACTS, memory_mib: 2 * FACTS.memory_mib });
  assert.match(await listHosts(onServer()), /far +up +0 +0 B of \d+ TiB/);
  const fingerprint = joined.fingerprint.replace(/^../, (byte) => (byte === '00' ? '01' : '00'));
  const misled = new ControlPlaneClient({ address: origin, token: joined.token, fingerprint });
  await assert.rejects(misled.heartbeat({ facts: FACTS, disks: [] }), (error: Error) => {
    assert(error instanceof ControlPlaneUnavailable);
    assert.match(String(error.cause), /not the one in the join token/);
    return true;
  });
  await misled.close();
});

test('TCP keep-alive notices a host that vanishes while idle', async (t) => {
  const { port } = new URL(origin);
  const socket = dial(t, Number(port));
  await once(socket, 'connect');
  const at = (port: string | number) =>
    `0100007F:${Number(port).toString(16).toUpperCase().padStart(4, '0')}`;
  await until('its keepalive runs', () =>
    readFileSync('/proc/net/tcp', 'utf8')
      .split('\n')
      .map((line) => line.trim().split(/\s+/))
      .some(
        ([, local, remote, , , timer]) =>
          local === at(port) && remote === at(socket.localPort ?? 0) && timer?.startsWith('02:'),
      ),
  );
});

test("the listener for hosts serves neither this machine's token nor the ingress's calls", async () => {
  const { fingerprint, token: of_far } = joined;
  const refused = async (bearer: string, work: (client: ControlPlaneClient) => Promise<unknown>) => {
    const client = new ControlPlaneClient({ address: origin, token: bearer, fingerprint });
    const error = await work(client).then(() => null, String);
    await client.close();
    return /with (\d+)/.exec(error ?? '')?.[1];
  };
  const signal = new AbortController().signal;
  const beat = (client: ControlPlaneClient) => client.heartbeat({ facts: FACTS, disks: [] });
  assert.equal(await refused(api.host_token, beat), '401');
  assert.equal(await refused(`berth_host_${'x'.repeat(49)}`, beat), '401');
  assert.equal(await refused(of_far, (client) => client.routes({ seen: null, blocked: [] }, signal)), '401');
  const { id } = await api.instance(owner);
  assert.equal(await refused(of_far, (client) => client.wake({ instance_id: id }, signal)), '401');
  const client = new ControlPlaneClient({ address: origin, token: of_far, fingerprint });
  await assert.rejects(client.openTunnel(id), 'a host asks for no way to VMs of others');
  await client.close();
});

test('the current image comes from this machine; a remote host registers only what one of its disks needs', async () => {
  const version = (digit: string) => digit.repeat(64);
  const from = ({ client }: ScriptedAgent, digit: string) =>
    client.registerImage({
      ...{ id: 'shared', version: version(digit), recipe: `recipe ${digit}`, index_sha256: version('0') },
      ...{ size_bytes: 2 ** 30, stored_bytes: 1_000, newest: true },
    });
  const verdict = async ({ client }: ScriptedAgent, digit: string, needed: boolean) => {
    const offered = { id: 'shared', version: version(digit), recipe: `recipe ${digit}`, needed };
    return (await client.offerImages({ images: [offered] })).verdicts[0];
  };
  const current = async () => (await far.client.findImage({ id: 'shared', version: null }))?.version;
  for (const needed of [false, true])
    assert.equal(await verdict(far, '1', needed), 'unneeded', 'no disk there is');
  assert.deepEqual(await from(far, '1'), { outcome: 'fenced' });
  assert.equal(await current(), undefined);
  await from(api.agent, '0');
  assert.equal(await current(), version('0'));
  // A disk that began there before anything was stored: which version it is of, that host alone knows.
  const { id } = await api.instance(owner, { image: 'shared' });
  await api.as(owner).post(`/v1/instances/${id}/vm`);
  await far.assigned(id);
  await api.db.updateTable('disks').set({ image_version: null }).where('instance_id', '=', id).execute();
  assert.equal(await verdict(far, '2', true), 'wanted');
  assert.deepEqual(await from(far, '2'), { outcome: 'accepted' });
  assert.equal(await current(), version('0'), 'a newer one of its is for that disk alone');
  assert.equal((await far.client.findImage({ id: 'shared', version: version('2') }))?.version, version('2'));
  await far.failed(id);
  assert.equal(await verdict(api.agent, '3', false), 'wanted');
  await from(api.agent, '3');
  assert.equal(await current(), version('3'));
});

const running = async (): Promise<InstanceOut> => {
  const instance = await api.instance(owner);
  const { host_id } = await far.heartbeat();
  await onlyOn(api, host_id, async () => {
    assert.equal((await api.as(owner).post(`/v1/instances/${instance.id}/vm`)).status, 202);
  });
  await far.assigned(instance.id);
  await far.ready(instance.id);
  return instance;
};

/** An instance that runs there, with its port here. */
const reachable = async (t: TestContext) => {
  const instance = await running();
  const route = (await listRoutes(api.db, api.host_id)).find(
    ({ instance_id }) => instance_id === instance.id,
  );
  assert.equal(route?.target, `tunnel:${instance.id}`);
  const client = new ControlPlaneClient({ address: api.internal_origin, token: api.ingress_token });
  const ingress = new Ingress({ listen: { every: '127.0.0.1', by_name: null }, client, log });
  t.after(async () => {
    await ingress.close();
    await client.close();
  });
  await ingress.apply([route]);
  return { instance, port: route.port };
};

/** Answers a call for SSH as its agent does. */
const answer = async (call_id: string, sshd: string) => {
  const port = Number(sshd.split(':')[1]);
  joinStreams(
    await far.client.openConsole(call_id),
    connect({ host: '127.0.0.1', port, allowHalfOpen: true }),
  );
};

test('the ingress reaches a remote VM through its agent, whatever address it reports', async (t) => {
  const { instance, port } = await reachable(t);
  const [up, down] = [randomBytes(8 * 1024 * 1024), randomBytes(8 * 1024 * 1024)];
  const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
  // The guest's sshd, as its agent reaches it: greets, takes all, answers, ends.
  const heard = Promise.withResolvers<string>();
  const sshd = await target(t, (socket) => {
    let left = up.length;
    const parts: Buffer[] = [];
    socket.write('SSH-2.0-test\r\n');
    socket.on('data', (part: Buffer) => {
      parts.push(part);
      left -= part.length;
      if (left > 0) return;
      heard.resolve(digest(Buffer.concat(parts)));
      socket.end(down);
    });
  });
  const caller = dial(t, port);
  const { id, call } = await far.nextCall('ssh');
  assert.deepEqual(call, {
    kind: 'ssh',
    instance_id: instance.id,
    vm_id: (await far.known(instance.id)).vm_id,
  });
  await answer(id, sshd);
  caller.write(up);
  const got = await readAll(caller);
  assert.equal(await heard.promise, digest(up));
  assert.equal(got.subarray(0, 14).toString(), 'SSH-2.0-test\r\n');
  assert.equal(digest(got.subarray(14)), digest(down));

  const unanswered = dial(t, port);
  const refused = await far.nextCall('ssh');
  await far.client.answerCall({
    id: refused.id,
    answer: { error: { code: 'not_running', message: 'Gone.' } },
  });
  assert.equal((await readAll(unanswered)).length, 0, 'it is closed');
});

test('a tunnel is half-open: one side may send after the other has ended', async (t) => {
  const { port } = await reachable(t);
  const said = randomBytes(1024 * 1024);
  const first = dial(t, port);
  const { id } = await far.nextCall('ssh');
  await answer(id, await target(t, (socket) => socket.resume().once('end', () => socket.end(said))));
  first.end('all');
  assert((await readAll(first)).equals(said));

  const heard = Promise.withResolvers<Buffer>();
  const second = dial(t, port);
  const { id: other } = await far.nextCall('ssh');
  const sshd = await target(t, (socket) => {
    socket.end('all');
    heard.resolve(readAll(socket));
  });
  await answer(other, sshd);
  assert.equal(String(await readAll(second)), 'all');
  second.end(said);
  assert((await heard.promise).equals(said));
});

const skip = process.getuid?.() === 0 ? false : 'the files of a guest are those of root';
test('files of a remote VM are written, read in part, listed and removed', { skip }, async (t) => {
  const { id } = await running();
  const folder = mkdtempSync(join(tmpdir(), 'bt-files-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  t.after(serveGuestFiles(far));
  const files = new Berth({ url: api.origin, token: owner.session }).files(id);
  const content = randomBytes(5 * 1024 * 1024);
  const path = join(folder, 'new/file');
  assert.equal((await files.write(path, content, { mode: '0640' })).mode, '0640');
  assert(readFileSync(path).equals(content));
  const part = await files.read(path, { start: 1_000_000, end: 4_000_000 });
  assert(Buffer.from(await part.arrayBuffer()).equals(content.subarray(1_000_000, 4_000_000)));
  const names: string[] = [];
  for await (const { name } of files.list(join(folder, 'new'))) names.push(name);
  assert.deepEqual(names, ['file']);
  await files.remove(join(folder, 'new'), { recursive: true });
  await assert.rejects(files.read(path), { code: 'NOT_FOUND' });
  await far.failed(id);
});

test('a cordoned host gets no VM; a host with VMs is removed only with --lost', async () => {
  const there = await running();
  assert.match(await cordonHost(onServer(), 'far'), /takes no new VMs\. Its 3 VMs stay there/);
  assert.match(await listHosts(onServer()), /far +cordoned +3/);
  const { id } = await api.instance(owner);
  await api.as(owner).post(`/v1/instances/${id}/vm`);
  assert.equal((await stateOf(api, owner, id)).host_id, api.host_id);
  await assert.rejects(removeHost(onServer(), 'local', false), /is this machine/);
  await assert.rejects(removeHost(onServer(), 'far', false), /3 VMs are on far: drain it first/);
  assert.equal((await stateOf(api, owner, there.id)).state, 'running');

  await removeHost(onServer(), 'far', true);
  await assert.rejects(far.heartbeat(), /401/);
  const watch = new LeaseMonitor();
  const over_ms = DEFAULT_LEASE_MS + marginMs(DEFAULT_LEASE_MS);
  for (let now_ms = 0; now_ms <= over_ms; now_ms += 5_000)
    await expireHosts(api.db, watch, log, () => now_ms);
  assert.equal(
    (await stateOf(api, owner, there.id)).state,
    'running',
    'until its lease and the margin are over',
  );
  await expireHosts(api.db, watch, log, () => over_ms);
  const lost = await stateOf(api, owner, there.id);
  assert.deepEqual([lost.state, lost.reason?.code], ['failed', 'host_lost']);
  assert.doesNotMatch(await listHosts(onServer()), /far/);

  assert.notEqual((await addHost(onServer(), 'far')).trim(), token, 'a machine may come back');
  assert.match(await listHosts(onServer()), /far +expected/);
  const live = await listLiveHosts(api.db);
  assert.deepEqual(
    live.map(({ id }) => id),
    [api.host_id],
    'nothing is placed there before it has joined',
  );
});
