/** HAProxy with its configuration of `deploy/`, in front of doubles of two control planes and three PostgreSQL servers. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage } from 'node:http';
import { get as httpsGet } from 'node:https';
import { type AddressInfo, connect, createServer as createTcpServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { certificate } from '../support/certificate.ts';
import { skipWithout } from '../support/program.ts';
import { until } from '../support/waiting.ts';

const CONFIGURATION = join(import.meta.dirname, '..', '..', 'deploy', 'haproxy', 'haproxy.cfg');

/** A control plane: what it got, and whether its database answers. */
class ControlPlane {
  is_ready = true;
  readonly asked = new Set<string>();
  readonly requests: IncomingMessage['headers'][] = [];
  readonly name: string;
  readonly server: Server;

  constructor(name: string) {
    this.name = name;
    this.server = createServer((request, response) => {
      if (request.url?.startsWith('/readyz')) {
        this.asked.add(request.url);
        response.writeHead(this.is_ready ? 200 : 503).end();
      } else {
        this.requests.push(request.headers);
        response.end(this.name);
      }
    });
  }
}

async function listen(server: Server): Promise<number> {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return (server.address() as AddressInfo).port;
}

describe('HAProxy', skipWithout('haproxy', 'haproxy'), () => {
  const planes = [new ControlPlane('control-1'), new ControlPlane('control-2')] as const;
  const databases = [1, 2, 3].map((i) => createTcpServer((socket) => socket.end(`db-${i}`)));
  let primary = 1;
  const patronis = [1, 2, 3].map((i) =>
    createServer((request, response) => {
      const is_primary = request.method === 'OPTIONS' && request.url === '/primary' && primary === i;
      response.writeHead(is_primary ? 200 : 503).end();
    }),
  );
  const servers: Server[] = [...planes.map(({ server }) => server), ...databases, ...patronis];
  let folder = '';
  let haproxy: ChildProcess | undefined;
  let [api_port, database_port] = [0, 0];

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-haproxy-'));
    const { key, cert } = await certificate({ after }, 'berth.example.org');
    await writeFile(join(folder, 'berth.pem'), Buffer.concat([cert, key]));
    let written = await readFile(CONFIGURATION, 'utf8');
    const replace = (from: string, to: string) => {
      assert.ok(written.includes(from), from);
      written = written.replaceAll(from, to);
    };
    replace('/etc/haproxy/berth.pem', join(folder, 'berth.pem'));
    replace('  log /dev/log local0\n  user haproxy\n  group haproxy\n', '');
    // It wants two open files for each, which this machine may not allow.
    replace('maxconn 20000', 'maxconn 100');
    for (const [i, { server }] of planes.entries()) {
      replace(`10.0.0.1${i + 1}:7400`, `127.0.0.1:${await listen(server)}`);
    }
    for (const [i, server] of databases.entries()) {
      const patroni = patronis[i] as Server;
      replace(
        `10.0.0.4${i + 1}:5432 check port 8008`,
        `127.0.0.1:${await listen(server)} check port ${await listen(patroni)}`,
      );
    }
    [api_port, database_port] = [await freePort(), await freePort()];
    replace('bind :443', `bind 127.0.0.1:${api_port}`);
    replace('bind :5432', `bind 127.0.0.1:${database_port}`);
    replace('bind :7500', `bind 127.0.0.1:${await freePort()}`);
    const path = join(folder, 'haproxy.cfg');
    await writeFile(path, written);
    haproxy = spawn('haproxy', ['-db', '-f', path], { stdio: 'ignore' });
  });
  after(async () => {
    haproxy?.kill('SIGKILL');
    for (const server of servers) server.close();
    await rm(folder, { recursive: true, force: true });
  });

  test('sends requests only to a control plane whose database answers, over TLS, with the address that it has seen', async () => {
    const [first, second] = planes;
    first.is_ready = false;
    await until('only the second serves', async () => {
      assert.equal(haproxy?.exitCode, null, 'HAProxy has not ended');
      const names = await Promise.all([1, 2, 3, 4].map(() => ask(api_port).catch(() => '')));
      return names.every((name) => name === 'control-2');
    });
    assert.deepEqual([...first.asked], ['/readyz?only=database']);
    const headers = second.requests.at(-1);
    assert.equal(headers?.['x-forwarded-for'], '127.0.0.1', 'not what the client claims');
    assert.equal(headers['x-forwarded-proto'], 'https');
    assert.equal(headers.host, 'berth.example.org');
    [first.is_ready, second.is_ready] = [true, false];
    await until('only the first serves', async () => (await ask(api_port).catch(() => '')) === 'control-1');
  });

  test('leads to the primary of PostgreSQL, and to the next one after a failover', async () => {
    await until('it leads to the first', async () => (await read(database_port)) === 'db-1');
    primary = 3;
    await until('it leads to the third', async () => (await read(database_port)) === 'db-3');
  });
});

async function freePort(): Promise<number> {
  const server = createTcpServer();
  const port = await listen(server);
  server.close();
  await once(server, 'close');
  return port;
}

async function ask(port: number): Promise<string> {
  const headers = { host: 'berth.example.org', 'x-forwarded-for': '203.0.113.9' };
  const options = { port, host: '127.0.0.1', headers, rejectUnauthorized: false, agent: false };
  const [response] = (await once(httpsGet(options), 'response')) as [IncomingMessage];
  return text(response);
}

/** What the server behind a TCP port sends; empty: nothing, or no connection. */
async function read(port: number): Promise<string> {
  return text(connect(port, '127.0.0.1')).catch(() => '');
}
