/** Real clients before the proxy of HTTP ports: h2load, curl, a browser. Others are in http-upgrades (ws) and http-caddy. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { WebSocketServer } from 'ws';
import { NO_BROWSER, startBrowser } from '../support/browser.ts';
import { certificate } from '../support/certificate.ts';
import { guestServer, NAME, proxyTo } from '../support/http-ingress.ts';
import { HOST } from '../support/sockets.ts';

const run = promisify(execFile);

test('h2load gets an answer to each of 1,000 requests, by HTTP/1.1, HTTP/2, and HTTP/2 with TLS', async (t) => {
  const address = await guestServer(t, (request, response) =>
    response.end(request.headers['x-forwarded-proto']),
  );
  for (const [options, proto] of [
    [['--h1'], 'http'],
    [['-m', '32'], 'http'],
    [['-m', '32'], 'https'],
  ] as const) {
    const tls = proto === 'https' ? { tls: await certificate(t, NAME) } : {};
    const { port } = await proxyTo(t, { address: () => address }, tls);
    const { stdout } = await run('h2load', [
      ...[...options, '-n', '1000', '-c', '32', `--connect-to=${HOST}:${port}`, `${proto}://${NAME}/`],
    ]);
    assert.match(stdout, /1000 succeeded, 0 failed, 0 errored, 0 timeout/, stdout);
    assert.match(stdout, /status codes: 1000 2xx/, stdout);
    if (proto === 'https') assert.match(stdout, /Application protocol: h2\b/);
  }
});

test('curl chooses its protocol by ALPN, and sends and gets bodies and trailers with each', async (t) => {
  const address = await guestServer(t, async (request, response) => {
    const body = Buffer.concat(await request.toArray());
    response.writeHead(200, { trailer: 'x-length' });
    response.write(body);
    response.addTrailers({ 'x-length': String(body.length) });
    response.end();
  });
  const { port } = await proxyTo(t, { address: () => address }, { tls: await certificate(t, NAME) });
  const sent = `${'y'.repeat(299_999)}\n`;
  for (const [option, version] of [
    ['--http1.1', '1.1'],
    ['--http2', '2'],
  ] as const) {
    const asking = run('curl', [
      ...['-sSki', option, '--resolve', `${NAME}:${port}:${HOST}`, '-H', 'Expect:', '-X', 'POST'],
      ...['--data-binary', '@-', '-w', '\n%{http_version}', `https://${NAME}:${port}/`],
    ]);
    asking.child.stdin?.end(sent);
    const { stdout } = await asking;
    assert.ok(stdout.includes(sent), version);
    assert.match(stdout, /^x-length: 300000\r?$/m);
    assert.equal(stdout.split('\n').at(-1), version);
  }
});

/** It fetches, listens to events and talks by WebSocket. */
const PAGE = `<!doctype html><title>page</title><link rel="icon" href="data:,"><script type="module">
  const fetched = await (await fetch('/echo', { method: 'POST', body: 'fetched' })).text();
  const events = new EventSource('/events');
  const event = await new Promise((resolve) => events.onmessage = ({ data }) => resolve(data));
  events.close();
  const socket = new WebSocket('ws://' + location.host + '/socket');
  socket.onopen = () => socket.send('by WebSocket');
  const message = await new Promise((resolve) => socket.onmessage = ({ data }) => resolve(data));
  document.title = [fetched, event, message, document.cookie].join(', ');
</script>`;

test('a browser opens the URL without any configuration, with fetch, events, WebSocket and a cookie', {
  skip: NO_BROWSER,
}, async (t) => {
  const sockets = new WebSocketServer({ noServer: true });
  const address = await guestServer(
    t,
    async (request, response) => {
      if (request.url === '/events')
        return void response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: event\n\n');
      if (request.url === '/echo') return void request.pipe(response);
      response
        .setHeader('set-cookie', 'own=1; Domain=localhost')
        .setHeader('content-type', 'text/html')
        .end(PAGE);
    },
    (server) =>
      server.on('upgrade', (request, socket, head) =>
        sockets.handleUpgrade(request, socket, head, (each) =>
          each.on('message', (data) => each.send(String(data))),
        ),
      ),
  );
  const { port } = await proxyTo(t, { address: () => address });
  const url = `http://${NAME}:${port}`;
  const browser = await startBrowser(url);
  t.after(() => browser.close());
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${url}/`);
  await page.waitForFunction(`document.title !== 'page'`);
  assert.equal(await page.title(), 'fetched, event, by WebSocket, own=1');
  const cookies = await context.cookies();
  assert.deepEqual(
    cookies.map(({ name, domain }) => [name, domain]),
    [['own', NAME]],
  );
  browser.assertQuiet();
});
