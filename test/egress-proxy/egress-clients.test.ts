/** Usual clients through the egress proxy: TLS with a certificate, and what HTTP/1.1 allows for bodies; in network namespaces. */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { EgressLab, GUEST } from '../support/egress-lab.ts';
import { endAll, inNamespace } from '../support/egress-outside.ts';
import { until } from '../support/waiting.ts';

const skip =
  process.getuid?.() !== 0 || spawnSync('nft', ['list', 'tables']).status !== 0
    ? 'network namespaces and firewall rules take root'
    : false;

const ADDRESS = '203.0.113.70';
const SERVER = join(import.meta.dirname, '../support/egress-web-server.ts');
const BODY = `${'0123456789'.repeat(30_000)}last`;
/** The usual ports of that address have the servers of egress-internet.ts. */
const REDIRECTS = `
table ip web {
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr ${ADDRESS} tcp dport 443 redirect to :8444
    ip daddr ${ADDRESS} tcp dport 80 redirect to :8081
  }
}
`;

describe('a usual client behind the egress proxy', { skip, timeout: 120_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-web-'));
  const [key, certificate] = [join(folder, 'key.pem'), join(folder, 'certificate.pem')];
  let lab: EgressLab;
  let server: ChildProcess | undefined;

  before(async () => {
    lab = await EgressLab.open();
    await lab.allow({ mode: 'allow', allow: ['web.test'] });
    const made = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
    const about = ['-days', '2', '-subj', '/CN=web.test', '-addext', 'subjectAltName=DNS:web.test'];
    execFileSync('openssl', [...made, ...about, '-keyout', key, '-out', certificate], { stdio: 'ignore' });
    inNamespace(lab.path('internet'), 'nft', ['-f', '-'], REDIRECTS);
    const enter = [`--net=${lab.path('internet')}`, '--'];
    server = spawn('nsenter', [...enter, process.execPath, SERVER, key, certificate], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    assert.ok(server.stdout);
    await once(server.stdout, 'data');
  });
  after(async () => {
    if (server) await endAll([server]);
    await lab?.close();
    rmSync(folder, { recursive: true, force: true });
  });

  async function curl(args: readonly string[], input = '') {
    const usual = ['--silent', '--show-error', '--noproxy', '*', '--max-time', '20'];
    const child = lab.spawn('curl', [...usual, '--cacert', certificate, ...args]);
    assert.ok(child.stdin && child.stdout);
    child.stdin.on('error', () => undefined);
    child.stdin.end(input);
    const closed = once(child, 'close');
    const said = await text(child.stdout);
    await closed;
    return { said, status: child.exitCode };
  }

  test('has TLS with the server itself: its certificate is the server’s', async () => {
    const { said, status } = await curl(['https://web.test/path?q=1']);
    assert.equal(status, 0);
    assert.match(said, /"url":"\/path\?q=1","host":"web.test"/);
  });

  for (const [what, curves, hellos] of [
    ['once where the server takes its key', 'P-384', 1],
    ['again where the server asks for another key', 'X25519:P-384', 2],
  ] as const) {
    test(`greets ${what}`, async () => {
      const { said } = await curl(['-v', '--stderr', '-', '--curves', curves, 'https://web.test/again']);
      assert.match(said, /"url":"\/again"/);
      assert.equal(said.match(/Client hello \(1\)/g)?.length, hellos);
    });
  }

  test('uploads a large body over TLS', async () => {
    const { said } = await curl(['-T', '-', 'https://web.test/up'], BODY);
    assert.match(said, new RegExp(`"bytes":${BODY.length},"last":"last"`));
  });

  test('that asks for a name which is not allowed is told so, by TLS and by HTTP', async () => {
    const at = (port: number) => ['--resolve', `evil.test:${port}:${ADDRESS}`];
    const by_tls = await curl(['--stderr', '-', ...at(443), 'https://evil.test/']);
    assert.equal(by_tls.status, 35);
    assert.match(by_tls.said, /access denied/i);
    const by_http = await curl([...at(80), 'http://evil.test/']);
    assert.match(by_http.said, /does not allow evil\.test/);
  });

  for (const [what, args, length] of [
    ['of a known length', ['--data-binary', '@-'], String(BODY.length)],
    ['in chunks', ['-T', '-'], 'chunked'],
    [
      'in chunks after 100-continue',
      ['-H', 'Expect: 100-continue', '--expect100-timeout', '15', '-T', '-'],
      'chunked',
    ],
    [
      'of a known length after 100-continue',
      ['-H', 'Expect: 100-continue', '--expect100-timeout', '15', '--data-binary', '@-'],
      String(BODY.length),
    ],
  ] as const) {
    test(`uploads a body ${what} by HTTP, and gets an answer in chunks`, async () => {
      const began_at = performance.now();
      const { said, status } = await curl(['-i', ...args, 'http://web.test/up'], BODY);
      assert.equal(status, 0);
      assert.match(said, new RegExp(`"length":"${length}","bytes":${BODY.length},"last":"last"`));
      assert.match(said, /Transfer-Encoding: chunked/i);
      if (what.includes('100')) assert.match(said, /^HTTP\/1\.1 100 Continue/);
      assert.ok(performance.now() - began_at < 10_000, 'it did not wait in vain');
    });
  }

  test('asks several times on one connection, also without a body', async () => {
    const url = 'http://web.test';
    const { said } = await curl([`${url}/a`, `${url}/b`, '-w', '%{num_connects}\n']);
    assert.match(said, /"url":"\/a".*\}1\n.*"url":"\/b".*\}0\n/);
    const head = await curl(['-I', `${url}/c`]);
    assert.match(head.said, /^HTTP\/1\.1 200 OK/);
  });

  /** As `nc -z` does. */
  async function connects(address: string, port: number): Promise<boolean> {
    const child = lab.spawn('bash', ['-c', `exec 2>/dev/null 3<>/dev/tcp/${address}/${port}`]);
    await once(child, 'close');
    return child.exitCode === 0;
  }
  const isDenied = (address: string, port: number) =>
    lab.denials.some((each) => each.address === address && each.port === port && each.guest === GUEST);
  const denied = (address: string, port: number) =>
    until(`${address}:${port} is listed as denied`, () => isDenied(address, port));

  test('that connects and sends nothing is refused where no allowed name has the address, and that is listed', async () => {
    await lab.allow({ mode: 'allow', allow: ['web.test', '*.wild.test', 'db.test:5432', '203.0.113.20'] });
    for (const [address, port] of [
      ['203.0.113.66', 443],
      ['203.0.113.66', 80],
      ['203.0.113.66', 5432],
      ['203.0.113.50', 443],
    ] as const) {
      assert.equal(await connects(address, port), false, `${address}:${port}`);
      await denied(address, port);
    }
    assert.equal(await connects(ADDRESS, 443), true, 'a name of the policy, without a look-up');
    assert.equal(await connects('203.0.113.30', 5432), true, 'with a port of its own');
    assert.equal(await connects('203.0.113.20', 22), true, 'an address of the policy');
    const { status } = await curl(['--connect-timeout', '5', '-o', '/dev/null', 'http://a.wild.test/']);
    assert.equal(status, 0);
    assert.equal(await connects('203.0.113.50', 443), true, 'a name below a wildcard, once it was looked up');
  });

  test('that connects and sends nothing is refused everywhere in mode deny, and that is listed', async () => {
    await lab.allow({ mode: 'allow', allow: ['web.test'] });
    assert.equal(await connects(ADDRESS, 443), true);
    await lab.allow({ mode: 'deny', allow: ['web.test'] });
    for (const port of [80, 443, 22]) {
      assert.equal(await connects(ADDRESS, port), false);
      await denied(ADDRESS, port);
    }
  });

  test('with a secret that connects and sends nothing is refused like any other', async () => {
    const secret = { placeholder: `berth-secret-${'a'.repeat(32)}`, hosts: ['web.test'], value: 'value' };
    await lab.allow({ mode: 'deny', allow: [] }, [secret]);
    lab.denials.length = 0;
    assert.equal(await connects(ADDRESS, 443), false);
    await denied(ADDRESS, 443);
    await lab.allow({ mode: 'allow', allow: ['web.test'] }, [secret]);
    assert.equal(await connects('203.0.113.66', 443), false);
    assert.equal(await connects(ADDRESS, 443), true);
    await lab.allow({ mode: 'open', allow: [] }, [secret]);
    assert.equal(await connects('203.0.113.66', 443), true, 'in mode open it may be any server');
    await lab.allow({ mode: 'allow', allow: ['web.test'] });
  });

  test('keeps what it knows of names through a new proxy', async () => {
    await lab.allow({ mode: 'allow', allow: ['web.test', '*.wild.test'] });
    await curl(['--connect-timeout', '5', '-o', '/dev/null', 'http://b.wild.test/']);
    lab.stopProxy();
    lab.startProxy();
    await lab.allow({ mode: 'allow', allow: ['web.test', '*.wild.test'] });
    assert.equal(await connects('203.0.113.50', 443), true);
  });

  test('whose body has trailers keeps its body, and the connection', async () => {
    const head = 'POST /t HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n';
    const bytes = `${head}4\r\nbody\r\n0\r\nX-A: 1\r\n\r\nGET /after HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n`;
    const { said } = await curl(['telnet://203.0.113.70:80'], bytes);
    assert.match(said, /"bytes":4,"last":"body"[\s\S]*"url":"\/after"/);
  });
});
