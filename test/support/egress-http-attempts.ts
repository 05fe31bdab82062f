/** Lists attempts to bypass an egress policy by HTTP. egress-attempts.ts includes them. */
import { type Attempt, EVIL, GOOD, tcp, text } from './egress-attempt.ts';

const http = (name: string, address: string, ...parts: string[]) => tcp(name, address, 80, text(...parts));
export const get = (host: string, target = '/') => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`;

export const HTTP_ATTEMPTS: readonly Attempt[] = [
  http('a host that is not allowed', EVIL, get('evil.test')),
  http('a host that is not allowed, at an allowed address', GOOD, get('evil.test')),
  http('an allowed host at another address', EVIL, get('allowed.test')),
  http('no host', EVIL, 'GET /evil HTTP/1.0\r\n\r\n'),
  http('no host, at an allowed address', GOOD, 'GET /evil HTTP/1.0\r\n\r\n'),
  http('another host in the second request', GOOD, get('allowed.test'), get('evil.test')),
  http('another host in a request behind the first', GOOD, get('allowed.test') + get('evil.test')),
  http(
    'another host behind a chunked body',
    GOOD,
    `POST / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  http(
    'smuggling by length and chunks',
    GOOD,
    `POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  http(
    'smuggling by a hidden chunked',
    GOOD,
    `POST / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  http(
    'another host in a body whose length Connection names',
    GOOD,
    `GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: content-length\r\nContent-Length: ${get('evil.test').length}\r\n\r\n${get('evil.test')}`,
  ),
  http('two hosts', GOOD, 'GET / HTTP/1.1\r\nHost: allowed.test\r\nHost: evil.test\r\n\r\n'),
  http('two hosts, the other first', GOOD, 'GET / HTTP/1.1\r\nHost: evil.test\r\nHost: allowed.test\r\n\r\n'),
  http('a host with a final dot', GOOD, get('evil.test.')),
  http('an allowed host with a final dot, at another address', EVIL, get('allowed.test.')),
  http('an allowed host with its port, at another address', EVIL, get('allowed.test:80')),
  http('an allowed host in capitals, at another address', EVIL, get('ALLOWED.TEST')),
  http('a host with an underscore', GOOD, get('_evil.test')),
  http('a host with an A-label', GOOD, get('xn--evil-9cd.test')),
  http('a host with other bytes', GOOD, get('allowed.test\u00ad.evil.test')),
  http('a host behind a tab', GOOD, 'GET / HTTP/1.1\r\nHost:\tevil.test\r\n\r\n'),
  http(
    'a host behind a bare CR',
    GOOD,
    'GET / HTTP/1.1\r\nX: a\rHost: evil.test\r\nHost: allowed.test\r\n\r\n',
  ),
  http('the target of an allowed CNAME as host', '203.0.113.40', get('end.evilchain.test')),
  http('a URL of another scheme', GOOD, get('allowed.test', 'https://evil.test/')),
  http('a URL with capitals', GOOD, get('allowed.test', 'HTTP://EVIL.test/')),
  http('HTTP/0.9', GOOD, 'GET /evil\r\n'),
  http(
    'a request that is its own connection header',
    GOOD,
    `GET / HTTP/1.1\r\nHost: evil.test\r\nConnection: host\r\n\r\n`,
  ),
  http(
    'another host behind an upgrade',
    GOOD,
    `GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n${get('evil.test')}`,
  ),
  http(
    'another host in a trailer',
    GOOD,
    'POST / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: evil.test\r\n\r\n',
  ),
  ...(
    [
      ['two lengths', 'Content-Length: 0\r\nContent-Length: 60'],
      ['a list of lengths', 'Content-Length: 0, 60'],
      ['a signed length', 'Content-Length: +0'],
      ['an unknown encoding', 'Transfer-Encoding: xchunked'],
      ['an encoding behind chunked', 'Transfer-Encoding: chunked, identity'],
      ['a folded encoding', 'Transfer-Encoding:\r\n chunked\r\nContent-Length: 0'],
    ] as const
  ).map(([what, head]) =>
    http(
      `smuggling by ${what}`,
      GOOD,
      `POST / HTTP/1.1\r\nHost: allowed.test\r\n${head}\r\n\r\n0\r\n\r\n${get('evil.test')}`,
    ),
  ),
  http('a folded host', GOOD, 'GET / HTTP/1.1\r\nHost: allowed.test\r\n evil.test\r\n\r\n'),
  http('a space before the colon', GOOD, 'GET / HTTP/1.1\r\nHost : evil.test\r\nHost: allowed.test\r\n\r\n'),
  http('a host with a user', GOOD, get('allowed.test@evil.test')),
  http('a host with another port', GOOD, get('allowed.test:8080', '/evil')),
  http('a list of hosts', GOOD, get('allowed.test, evil.test')),
  http('a host with a NUL', GOOD, get('allowed.test\u0000.evil.test')),
  http('an address as host', EVIL, get(EVIL, '/evil')),
  http('another host in the URL', GOOD, get('allowed.test', 'http://evil.test/')),
  http('another host than in the URL', GOOD, get('evil.test', 'http://allowed.test/')),
  http('a URL with a user', GOOD, get('allowed.test', 'http://allowed.test@evil.test/')),
  http('another host in front of a path', GOOD, get('allowed.test', 'evil.test:80')),
  http('CONNECT', GOOD, 'CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n'),
  http('CONNECT with an allowed host', GOOD, 'CONNECT evil.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n'),
  http(
    'CONNECT to an allowed host for evil',
    GOOD,
    'CONNECT allowed.test:22 HTTP/1.1\r\nHost: allowed.test:22\r\nevil: 1\r\n\r\n',
  ),
  http(
    'an upgrade to HTTP/2',
    GOOD,
    'GET /evil HTTP/1.1\r\nHost: evil.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n',
  ),
  http(
    'a WebSocket to another host',
    GOOD,
    'GET / HTTP/1.1\r\nHost: evil.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n',
  ),
  http('HTTP/2 without upgrade', GOOD, 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nevil'),
  http('bare line feeds', GOOD, 'GET / HTTP/1.1\nHost: evil.test\n\n'),
  http('another protocol on port 80', EVIL, 'evil\r\n'),
  http('another protocol on port 80 of an allowed address', GOOD, 'SSH-2.0-evil\r\n'),
  tcp('an HTTP proxy', EVIL, 3128, text(get('allowed.test', 'http://allowed.test/'))),
  tcp(
    'an HTTP proxy at an allowed name',
    GOOD,
    3128,
    text('CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n'),
  ),
];
