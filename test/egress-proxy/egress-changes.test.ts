/** Changes of an egress policy, for open connections and through failures of the proxy; in network namespaces. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { dnsQuery } from '../support/egress-attempts.ts';
import { EgressLab } from '../support/egress-lab.ts';
import { helloFor } from '../support/tls-hello.ts';
import { until } from '../support/waiting.ts';

const skip =
  process.getuid?.() !== 0 || spawnSync('nft', ['list', 'tables']).status !== 0
    ? 'network namespaces and firewall rules take root'
    : false;

const HTTP = Buffer.from('GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n');
const IN_EFFECT_MS = 2_000;
/** Until several programs on a busy machine have seen it. */
const SEEN_MS = 3_000;

/** `tcp|udp ADDRESS PORT HEX`: sends it, then again each 100 ms (TCP: once); prints `open` at each answer and `closed` at the end. */
const KEEP_OPEN = `
use strict; use Socket; use IO::Select; $| = 1; $SIG{PIPE} = 'IGNORE';
my ($kind, $address, $port, $hex) = @ARGV;
socket(my $s, PF_INET, $kind eq 'tcp' ? SOCK_STREAM : SOCK_DGRAM, 0) or die;
connect($s, pack_sockaddr_in($port, inet_aton($address))) or do { print "closed\\n"; exit };
syswrite $s, pack 'H*', $hex;
while (1) {
  if (IO::Select->new($s)->can_read(0.1)) {
    my $got = sysread $s, my $bytes, 65536;
    if ($got) { print "open\\n" } elsif ($kind eq 'tcp') { last }
  }
  syswrite $s, $kind eq 'tcp' ? "\\r\\n" : pack 'H*', $hex if $kind eq 'udp' || $port != 80;
}
print "closed\\n";
`;

describe('a change of the egress policy', { skip, timeout: 300_000 }, () => {
  let lab: EgressLab;
  before(async () => {
    lab = await EgressLab.open();
  });
  after(() => lab?.close());

  function keepOpen(kind: 'tcp' | 'udp', address: string, port: number, send: Buffer) {
    const child = lab.spawn('perl', ['-e', KEEP_OPEN, kind, address, String(port), send.toString('hex')]);
    const said = { open: 0, closed: false };
    assert.ok(child.stdout);
    createInterface(child.stdout).on('line', (line) => {
      if (line === 'open') said.open += 1;
      else said.closed = true;
    });
    return { said, end: () => child.kill('SIGKILL') };
  }

  async function lookUp(name: string): Promise<void> {
    const child = lab.spawn('perl', [`${import.meta.dirname}/../support/egress-probe.pl`]);
    child.stdin?.end(`0 udp 10.0.2.3 53 300 ${dnsQuery(name).toString('hex')}\n`);
    await once(child, 'close');
  }

  const allow = (...allow: string[]) => lab.allow({ mode: 'allow', allow });
  const ALL = ['allowed.test', 'db.test:5432', '203.0.113.20', '203.0.113.66:443'];

  async function openAll() {
    for (const name of ['allowed.test', 'db.test']) await lookUp(name);
    const all = {
      tls: keepOpen('tcp', '203.0.113.10', 443, helloFor('allowed.test')),
      http: keepOpen('tcp', '203.0.113.10', 80, HTTP),
      named: keepOpen('tcp', '203.0.113.30', 5432, Buffer.from('hello')),
      literal: keepOpen('tcp', '203.0.113.20', 22, Buffer.from('hello')),
      udp: keepOpen('udp', '203.0.113.20', 5000, Buffer.from('hello')),
    };
    await until('all are open', () => Object.values(all).every(({ said }) => said.open > 0 && !said.closed));
    return all;
  }

  for (const [what, policy] of Object.entries({
    'to other entries': { mode: 'allow', allow: ['other.test'] },
    'to mode deny': { mode: 'deny', allow: ALL },
  } as const)) {
    test(`${what} cuts each kind of open connection within 2 s`, async () => {
      await allow(...ALL);
      const { udp, ...streams } = await openAll();
      const changed_at = performance.now();
      await lab.allow(policy);
      await until('all are cut', () => Object.values(streams).every(({ said }) => said.closed));
      assert.ok(
        performance.now() - changed_at < IN_EFFECT_MS + SEEN_MS,
        `after ${performance.now() - changed_at} ms`,
      );
      const answers = udp.said.open;
      const sent = lab.contacts.length;
      await lookUp('other.test');
      assert.ok(udp.said.open <= answers + 1 && lab.contacts.length <= sent + 1, 'no packet passes any more');
      udp.end();
    });
  }

  test('keeps connections that it still allows', async () => {
    await allow(...ALL);
    const { tls, http, named, literal, udp } = await openAll();
    await allow('allowed.test', '203.0.113.20');
    await until('the one that is not allowed is cut', () => named.said.closed);
    const before = [tls.said.open, literal.said.open, udp.said.open];
    await until('the others go on', () =>
      [tls.said.open, literal.said.open, udp.said.open].every((count, at) => count > (before[at] ?? 0)),
    );
    assert.ok(!tls.said.closed && !http.said.closed && !literal.said.closed);
    for (const each of [tls, http, literal, udp]) each.end();
  });

  test('from mode open cuts connections that were made before', async () => {
    await lab.allow({ mode: 'open', allow: [] });
    const old = [
      keepOpen('tcp', '203.0.113.66', 443, helloFor('evil.test')),
      keepOpen('tcp', '203.0.113.10', 443, helloFor('allowed.test')),
      keepOpen('tcp', '203.0.113.66', 22, Buffer.from('hello')),
    ];
    await until('all are open', () => old.every(({ said }) => said.open > 0));
    const changed_at = performance.now();
    await allow('allowed.test');
    await until('all are cut', () => old.every(({ said }) => said.closed));
    assert.ok(performance.now() - changed_at < IN_EFFECT_MS + SEEN_MS);
  });

  test('without the proxy nothing by name passes, allowed addresses do, and a new proxy takes over', async () => {
    await allow('allowed.test', '203.0.113.20');
    await lookUp('allowed.test');
    const open = keepOpen('tcp', '203.0.113.10', 443, helloFor('allowed.test'));
    await until('it is open', () => open.said.open > 0);
    lab.stopProxy();
    await until('it is cut', () => open.said.closed);
    const refused = keepOpen('tcp', '203.0.113.10', 443, helloFor('allowed.test'));
    await until('a new one is refused', () => refused.said.closed);
    assert.equal(refused.said.open, 0);
    const literal = keepOpen('tcp', '203.0.113.20', 22, Buffer.from('hello'));
    await until('an address passes', () => literal.said.open > 0);
    lab.startProxy();
    await allow('allowed.test', '203.0.113.20');
    // The guest still has the answer of its look-up.
    const again = keepOpen('tcp', '203.0.113.10', 443, helloFor('allowed.test'));
    await until('the name passes again', () => again.said.open > 0);
    for (const each of [literal, again]) each.end();
  });

  test('a proxy that was killed is started again with the present policy', async () => {
    lab.contacts.length = 0;
    await allow('allowed.test');
    lab.killProxy();
    await until('it serves again', async () => {
      await lookUp('allowed.test');
      const tried = keepOpen('tcp', '203.0.113.10', 443, helloFor('allowed.test'));
      await until('an answer or an end', () => tried.said.closed || tried.said.open > 0);
      tried.end();
      return tried.said.open > 0;
    });
    const other = keepOpen('tcp', '203.0.113.66', 443, helloFor('evil.test'));
    await until('the other is refused', () => other.said.closed);
    assert.ok(!lab.contacts.some(({ address, port }) => address === '203.0.113.66' && port === 443));
  });
});
