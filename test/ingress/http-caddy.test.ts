/** Caddy in front of HTTP ports, as docs/publishing.md shows it, with its own authority in place of a public one. */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { WebSocket, WebSocketServer } from 'ws';
import { guestServer, proxyTo } from '../support/http-ingress.ts';
import { ownPort } from '../support/own-ports.ts';
import { HOST } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

const run = promisify(execFile);
const NAME = 'web-abcdefgh.apps.example.com';

/** The document's file, with the ports and folders of this test. */
async function caddyfile(options: { berth: number; https: number; http: number; storage: string }) {
  const text = await readFile(join(import.meta.dirname, '../../docs/publishing.md'), 'utf8');
  const [, shown = ''] = /```caddyfile\n([\s\S]*?)```/.exec(text) ?? [];
  assert.ok(shown.includes('on_demand_tls'));
  return shown
    .replaceAll('127.0.0.1:7480', `${HOST}:${options.berth}`)
    .replace(
      /^\{\n/,
      `{\n\tadmin off\n\tskip_install_trust\n\tstorage file_system ${options.storage}\n\thttp_port ${options.http}\n\thttps_port ${options.https}\n`,
    )
    .replace('https:// {', `https://:${options.https} {`)
    .replace('on_demand\n', 'on_demand\n\t\tissuer internal\n');
}

test('Caddy gets certificates for the hostnames of ports alone, and passes HTTP/2, addresses and WebSockets on', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'bca-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const sockets = new WebSocketServer({ noServer: true });
  const address = await guestServer(
    t,
    ({ headers }, response) =>
      response.end(`${headers['x-forwarded-proto']} ${headers['x-forwarded-for']} ${headers.host}`),
    (server) =>
      server.on('upgrade', (request, socket, head) =>
        sockets.handleUpgrade(request, socket, head, (each) => each.on('message', (data) => each.send(data))),
      ),
  );
  const { port } = await proxyTo(
    t,
    { address: () => address },
    { route: { hostnames: [NAME] }, trusted: [HOST] },
  );
  const https = await ownPort();
  const file = join(folder, 'Caddyfile');
  await writeFile(file, await caddyfile({ berth: port, https, http: await ownPort(), storage: folder }));
  const caddy = spawn('caddy', ['run', '--config', file, '--adapter', 'caddyfile'], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder },
  });
  let said = '';
  caddy.stderr.on('data', (data) => {
    said += data;
  });
  t.after(() => caddy.kill('SIGKILL'));
  const root = join(folder, 'pki/authorities/local/root.crt');
  const curl = (name: string) =>
    run('curl', [
      '-sS',
      '--http2',
      '--cacert',
      root,
      '--resolve',
      `${name}:${https}:${HOST}`,
      '-w',
      ' %{http_version}',
      `https://${name}:${https}/`,
    ]);
  await until(`Caddy serves: ${said}`, async () => {
    assert.equal(caddy.exitCode, null, said);
    return existsSync(root) && (await curl(NAME).catch(() => false));
  });
  assert.equal((await curl(NAME)).stdout, `https ${HOST} ${NAME}:${https} 2`);
  await assert.rejects(curl('other.apps.example.com'), /SSL|TLS/);
  const socket = new WebSocket(`wss://${NAME}:${https}/`, {
    ca: await readFile(root),
    lookup: (_name, _options, done) =>
      (done as (error: null, found: object[]) => void)(null, [{ address: HOST, family: 4 }]),
  });
  t.after(() => socket.terminate());
  const answer = await new Promise((resolve, reject) => {
    socket.on('open', () => socket.send('through Caddy')).on('message', (data) => resolve(String(data)));
    socket.on('error', reject);
  });
  assert.equal(answer, 'through Caddy');
});
