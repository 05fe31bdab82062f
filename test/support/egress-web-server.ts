/**
 * Servers for tests of the egress proxy: `egress-web-server.ts KEY CERTIFICATE` serves HTTPS on port 8444 and HTTP on
 * port 8081. An answer repeats what the server received, in chunks and with a trailer. A TLS client that offers no key
 * of P-384 must send a second ClientHello.
 */
import { readFileSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import { createServer as createTlsServer } from 'node:https';

const [, , key = '', certificate = ''] = process.argv;

const tell: RequestListener = async (request, response) => {
  let bytes = 0;
  let last = '';
  for await (const chunk of request) {
    bytes += (chunk as Buffer).length;
    last = (chunk as Buffer).toString('latin1').slice(-4);
  }
  const { method, url, headers } = request;
  // An answer to HEAD has no body, hence no trailers.
  if (method === 'HEAD') return void response.end();
  response.writeHead(200, { 'Content-Type': 'application/json', Trailer: 'X-Sum' });
  response.write(`{"method":"${method}","url":"${url}","host":"${headers.host}",`);
  response.write(`"length":"${headers['content-length'] ?? 'chunked'}","bytes":${bytes},"last":"${last}"}`);
  response.addTrailers({ 'X-Sum': String(bytes) });
  response.end();
};

createServer(tell).listen(8_081, '0.0.0.0');
createTlsServer({ key: readFileSync(key), cert: readFileSync(certificate), ecdhCurve: 'P-384' }, tell).listen(
  8_444,
  '0.0.0.0',
  () => process.stdout.write('ready\n'),
);
