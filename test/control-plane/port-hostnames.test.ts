/** Custom hostnames of HTTP ports, looked up at a real name server. */
import assert from 'node:assert/strict';
import { Resolver } from 'node:dns/promises';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { checkHostnames } from '../../src/control-plane/ports/check-hostnames.ts';
import { listDueHostnames } from '../../src/control-plane/ports/store.ts';
import type { HttpPortId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { NameServer } from '../support/name-server.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const servers: NameServer[] = [];
after(() => Promise.all(servers.map((each) => each.close())));

interface Hostname {
  readonly hostname: string;
  readonly status: string;
  readonly txt: { readonly name: string; readonly value: string };
  readonly checked_at: string | null;
  readonly problem: string | null;
}
interface Port {
  readonly id: HttpPortId;
  readonly hostname: string;
  readonly hostnames: readonly Hostname[];
  readonly path: string;
}

async function published(): Promise<Port> {
  const { id } = await api.instance(owner);
  const { body } = await client.post<Port>(`/v1/instances/${id}/ports`, { port: 8080, access: 'public' });
  return { ...body, path: `/v1/instances/${id}/ports/${body.id}` };
}
async function added(port: Port, hostname = `${newName()}.example.com`): Promise<Hostname> {
  const { status, body, text } = await client.post<Hostname>(`${port.path}/hostnames`, { hostname });
  assert.equal(status, 201, text);
  return body;
}
const shown = async (port: Port) => (await client.get<Port>(port.path)).body.hostnames;

/** Makes every check due, and runs them with these TXT records. */
async function check(records: Readonly<Record<string, string>>): Promise<void> {
  const server = await NameServer.start({}, records);
  servers.push(server);
  await checkAt(server.address);
}
async function checkAt(address: string, timeout = 5_000): Promise<void> {
  const resolver = new Resolver({ timeout, tries: 1 });
  resolver.setServers([address]);
  await api.db.updateTable('http_hostnames').set({ next_check_at: sql`now()` }).execute();
  await checkHostnames(api.db, api.context.http, (name) => resolver.resolveTxt(name));
}
async function routed(port: Port): Promise<readonly string[]> {
  const { routes } = await api.ingress.httpRoutes({ seen: null }, AbortSignal.timeout(5_000));
  return routes.find((each) => each.port_id === port.id)?.hostnames ?? [];
}
async function secondsToCheck(port: Port): Promise<number> {
  const { seconds } = await api.db
    .selectFrom('http_hostnames')
    .select(sql<number>`extract(epoch from next_check_at - now())::float8`.as('seconds'))
    .where('port_id', '=', port.id)
    .executeTakeFirstOrThrow();
  return seconds;
}

test('201: pending, with the TXT record to make; no route before it is found', async () => {
  const port = await published();
  const hostname = `${newName()}.example.com`;
  const made = await added(port, hostname.toUpperCase());
  assert.deepEqual([made.hostname, made.status, made.checked_at], [hostname, 'pending', null]);
  assert.equal(made.txt.name, `_berth.${hostname}`);
  assert.match(made.txt.value, /^berth-port=[0-9a-f]{40}$/);
  assert.deepEqual(await routed(port), [port.hostname]);
});

test('active once the record is found, beside other records, and checked again in a day', async () => {
  const port = await published();
  const { hostname, txt } = await added(port);
  const { etag } = (await client.get(port.path)).headers;
  await check({ [txt.name]: 'something-else' });
  assert.match((await shown(port))[0]?.problem ?? '', /no TXT record with this name and value/);
  assert.deepEqual(await routed(port), [port.hostname]);
  await check({ [txt.name]: txt.value });
  const [now] = await shown(port);
  assert.deepEqual([now?.status, now?.problem], ['active', null]);
  assert.deepEqual(await routed(port), [port.hostname, hostname]);
  assert.notEqual((await client.get(port.path)).headers['etag'], etag);
  const seconds = await secondsToCheck(port);
  assert.ok(Math.abs(seconds - 86_400) < 60, String(seconds));
});

test('pending again when the record is gone; a silent name server changes nothing', async () => {
  const port = await published();
  const { hostname, txt } = await added(port);
  await check({ [txt.name]: txt.value });
  await checkAt('127.0.0.1:9', 500);
  assert.equal((await shown(port))[0]?.status, 'active');
  assert.match((await shown(port))[0]?.problem ?? '', /did not answer/);
  assert.deepEqual(await routed(port), [port.hostname, hostname]);
  await check({});
  assert.equal((await shown(port))[0]?.status, 'pending');
  assert.deepEqual(await routed(port), [port.hostname]);
  await check({ [txt.name]: txt.value });
  assert.equal((await shown(port))[0]?.status, 'active');
});

test('several ports may wait for a name, and one has it until its record is gone', async () => {
  const [first, second] = [await published(), await published()];
  const hostname = `${newName()}.example.com`;
  const mine = await added(first, hostname);
  const theirs = await added(second, hostname);
  assert.notEqual(mine.txt.value, theirs.txt.value);
  await check({ [mine.txt.name]: mine.txt.value });
  assert.deepEqual(await routed(first), [first.hostname, hostname]);
  assert.deepEqual(await routed(second), [second.hostname]);
  // The record of the second replaces that of the first.
  await check({ [mine.txt.name]: theirs.txt.value });
  await check({ [mine.txt.name]: theirs.txt.value });
  assert.deepEqual(await routed(first), [first.hostname]);
  assert.deepEqual(await routed(second), [second.hostname, hostname]);
});

test('a pending name is checked ever more rarely, at least hourly', async () => {
  const port = await published();
  await added(port);
  const after_s = async (age: string) => {
    await api.db
      .updateTable('http_hostnames')
      .set({ created_at: sql`now() - ${age}::interval` })
      .where('port_id', '=', port.id)
      .execute();
    await check({});
    return secondsToCheck(port);
  };
  assert.ok(Math.abs((await after_s('0 s')) - 5) < 3);
  assert.ok(Math.abs((await after_s('10 min')) - 60) < 5);
  assert.ok(Math.abs((await after_s('30 days')) - 3600) < 5);
});

describe('POST', () => {
  test('400: no name of the user: an address, one label, a wildcard, a URL, or a name of Berth', async () => {
    const port = await published();
    for (const hostname of [
      ...['1.2.3.4', '1.2.3', '0x7f.1', '[::1]', '::1', 'app', '*.example.com', 'https://app.example.com'],
      ...['app.example.com:80', 'app.example.com.', '-a.example.com', 'a_b.example.com', 'a..example.com'],
      ...['apps.test', 'x.apps.test', 'a.b.apps.test', 'localhost', 'x.localhost', 'X.APPS.TEST'],
      ...['app.example.com/path', 'app.example.com?x', 'bücher.example.com/path', 'user@bücher.example.com'],
      ...[`${'a'.repeat(64)}.example.com`, `${'a.'.repeat(124)}example.com`, 'app example.com'],
    ]) {
      const answer = await client.post(`${port.path}/hostnames`, { hostname });
      assert.equal(assertError(answer, 'INVALID_REQUEST').details?.[0]?.field, 'hostname', hostname);
    }
  });
  test('an international name is kept in ASCII', async () => {
    const { hostname } = await added(await published(), 'bücher.example.com');
    assert.equal(hostname, 'xn--bcher-kva.example.com');
  });
  test('409 where the port has it already; 429 past ten', async () => {
    const port = await published();
    const { hostname } = await added(port);
    assertError(await client.post(`${port.path}/hostnames`, { hostname }), 'CONFLICT', /already/);
    for (let i = 1; i < 10; i++) await added(port);
    const more = await client.post(`${port.path}/hostnames`, { hostname: 'eleven.example.com' });
    assertError(more, 'QUOTA_EXCEEDED', /10 custom hostnames/);
  });
});

test('DELETE: 204, its route ends; 404 for one that the port does not have', async () => {
  const port = await published();
  const { hostname, txt } = await added(port);
  await check({ [txt.name]: txt.value });
  assert.equal((await client.delete(`${port.path}/hostnames/${hostname}`)).status, 204);
  assert.deepEqual(await routed(port), [port.hostname]);
  for (const each of [hostname, '%00', 'a%0a', '..%2f..'])
    assertError(await client.delete(`${port.path}/hostnames/${each}`), 'NOT_FOUND');
});

test('a private port opens in a browser under its active custom hostname, with a cookie of that name alone', async () => {
  const port = await published();
  await client.call('PATCH', port.path, { json: { access: 'private' } });
  const { hostname, txt } = await added(port);
  const open = () => client.post<{ url: string }>(`${port.path}/open`, { hostname });
  assertError(await open(), 'INVALID_REQUEST');
  await check({ [txt.name]: txt.value });
  const { url } = (await open()).body;
  assert.equal(new URL(url).hostname, hostname);
  const ticket = new URL(url).searchParams.get('ticket') ?? '';
  const redeemed = await api.ingress.redeemHttpTicket({ hostname, ticket });
  assert.equal(redeemed.outcome, 'redeemed');
  const cookie = redeemed.outcome === 'redeemed' ? redeemed.cookie : '';
  const judge = async (at: string) =>
    (
      await api.ingress.authoriseHttp({
        port_id: port.id,
        hostname: at,
        address: '::1',
        bearer: null,
        cookie,
      })
    ).outcome;
  assert.equal(await judge(hostname), 'allowed');
  assert.equal(await judge(port.hostname), 'unauthenticated');
  await check({});
  assert.equal(await judge(hostname), 'unknown');
});

test('an organisation with many names that are due does not hold up the check of another', async () => {
  const port = await published();
  for (let made = 0; made < 5; made++) await added(port);
  const other = await api.person();
  const { id } = await api.instance(other);
  const theirs = await api.as(other).post<Port>(`/v1/instances/${id}/ports`, { port: 80, access: 'public' });
  const hostname = `${newName()}.example.com`;
  await api.as(other).post(`/v1/instances/${id}/ports/${theirs.body.id}/hostnames`, { hostname });
  await api.db
    .updateTable('http_hostnames')
    .set({
      next_check_at: sql`now() - case when hostname = ${hostname} then interval '0' else interval '1 hour' end`,
    })
    .execute();
  const due = await listDueHostnames(api.db, 2);
  assert.ok(due.some((each) => each.hostname === hostname));
});

test('a name of an instance that is being deleted takes no place among the checks', async () => {
  const port = await published();
  await added(port);
  const instance_id = /inst_\w+/.exec(port.path)?.[0];
  await api.db.updateTable('http_hostnames').set({ next_check_at: sql`now()` }).execute();
  const isDue = async () =>
    (await listDueHostnames(api.db, 1_000)).some(({ port_id }) => port_id === port.id);
  assert.equal(await isDue(), true);
  assert.equal((await client.delete(`/v1/instances/${instance_id}`)).status, 202);
  assert.equal(await isDue(), false);
});
