/** What a guest under an egress policy reaches and does not reach, in network namespaces with the real rules, proxy and kernel log. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import type { EgressPolicy } from '../../src/shared/egress-policy.ts';
import type { Attempt } from '../support/egress-attempt.ts';
import { ATTEMPTED_POLICY, ATTEMPTS, dnsQuery, probeLines } from '../support/egress-attempts.ts';
import { EgressLab, GUEST } from '../support/egress-lab.ts';
import { inNamespace, isLeak, packetCounters } from '../support/egress-outside.ts';
import { helloFor } from '../support/tls-hello.ts';
import { until, untilWorks } from '../support/waiting.ts';

const skip =
  process.getuid?.() !== 0 || spawnSync('nft', ['list', 'tables']).status !== 0
    ? 'network namespaces and firewall rules take root'
    : false;

/** Promised is a second; a busy machine takes longer. */
const SEEN_MS = 5_000;
const PATIENCE = { timeout_ms: 10_000 };

const OPEN: EgressPolicy = { mode: 'open', allow: [] };
const WAIT_MS = 500;
/** Of one attempt, which is often to be answered. */
const WAIT_OF_ONE_MS = 1_000;

describe('a guest with an egress policy', { skip, timeout: 300_000 }, () => {
  let lab: EgressLab;

  before(async () => {
    lab = await EgressLab.open();
    inNamespace(lab.path('internet'), 'nft', ['-f', '-'], packetCounters(GUEST));
  });
  after(() => lab?.close());

  /** The answers by attempt, '' for none. */
  async function probe(attempts: readonly Attempt[], wait_ms = WAIT_MS): Promise<string[]> {
    const child = lab.spawn('perl', [`${import.meta.dirname}/../support/egress-probe.pl`]);
    const answers = attempts.map(() => '');
    assert.ok(child.stdout && child.stdin);
    child.stdin.end(probeLines(attempts, wait_ms));
    for await (const line of createInterface(child.stdout)) {
      const [id = '', hex = ''] = line.split(' ');
      answers[Number(id)] = hex === '-' ? '' : hex;
    }
    return answers;
  }

  const one = async (attempt: Omit<Attempt, 'name' | 'reaches_in_open'>) =>
    Buffer.from(
      (await probe([{ name: '', reaches_in_open: true, ...attempt }], WAIT_OF_ONE_MS))[0] ?? '',
      'hex',
    ).toString('latin1');
  const tcp = (address: string, port: number, ...send: Buffer[]) => one({ kind: 'tcp', address, port, send });
  const lookUp = (name: string) =>
    one({ kind: 'udp', address: '10.0.2.3', port: 53, send: [dnsQuery(name)] });

  test('in mode open each attempt reaches its server, so that the table proves something', async () => {
    await lab.allow(OPEN);
    lab.contacts.length = 0;
    const answers = await probe(ATTEMPTS);
    const missed = () =>
      ATTEMPTS.filter(({ kind, address, port, reaches_in_open }, id) => {
        if (!reaches_in_open) return false;
        const plain = address.replace('::ffff:', '');
        const seen = lab.contacts.some(
          (each) => each.protocol === kind && each.address === plain && each.port === port,
        );
        return !seen && answers[id] === '';
      }).map(({ name }) => name);
    // The servers may tell of the last ones a little later.
    await untilWorks('each reaches its server', async () => assert.deepEqual(missed(), []), PATIENCE);
    await until('packets of other protocols', () => counted(lab, 'others') >= 10, PATIENCE);
    await until(
      'a datagram in fragments',
      () => lab.contacts.some(({ first }) => first === 'evil in fragments'),
      PATIENCE,
    );
  });

  test('in mode open private addresses, the host and IPv6 stay closed, and are listed as denied', async () => {
    const bad = lab.contacts.filter(({ address }) => /^(10|192\.168|169\.254)\.|:/.test(address));
    assert.deepEqual(bad, []);
    await until('the denied address', () =>
      lab.denials.some(
        ({ guest, address, port }) => guest === GUEST && address === '192.168.7.7' && port === 443,
      ),
    );
  });

  test(`none of ${ATTEMPTS.length} attempts to bypass the policy reaches a server`, async () => {
    assert.ok(ATTEMPTS.length >= 80);
    await lab.allow(ATTEMPTED_POLICY);
    for (const name of ['allowed.test', 'mixed.test', 'chain.test', 'x.wild.test', 'db.test'])
      await lookUp(name);
    lab.contacts.length = 0;
    inNamespace(lab.path('internet'), 'nft', ['-f', '-'], packetCounters(GUEST));
    const answers = await probe(ATTEMPTS);
    const leaks = lab.contacts.filter(isLeak);
    assert.deepEqual(leaks, []);
    const told = ATTEMPTS.filter(
      ({ forbidden }, id) => forbidden && Buffer.from(answers[id] ?? '', 'hex').includes(forbidden),
    );
    assert.deepEqual(
      told.map(({ name }) => name),
      [],
    );
    const pinged = ATTEMPTS.filter(
      ({ kind }, id) => kind === 'icmp' && answers[id]?.slice(40, 42) === ECHO_REPLY,
    );
    assert.deepEqual(
      pinged.map(({ name }) => name),
      [],
    );
    assert.equal(counted(lab, 'others'), 0, 'no packet of another protocol');
    assert.equal(counted(lab, 'direct'), 0, 'no packet but to the allowed address');
    assert.equal(counted(lab, 'six'), 0, 'no IPv6 packet');
  });

  test('what the policy allows works', async () => {
    await lab.allow(ATTEMPTED_POLICY);
    const answer = await lookUp('allowed.test');
    assert.ok(answer.includes(Buffer.from([203, 0, 113, 10]).toString('latin1')));
    assert.match(await tcp('203.0.113.10', 443, helloFor('allowed.test')), /REACHED 203\.0\.113\.10:443/);
    assert.match(await tcp('203.0.113.10', 80, http('allowed.test')), /REACHED 203\.0\.113\.10:80/);
    assert.match(await tcp('203.0.113.20', 8080, Buffer.from('hi')), /REACHED 203\.0\.113\.20:8080/);
    await lookUp('db.test');
    assert.match(await tcp('203.0.113.30', 5432, Buffer.from('hi')), /REACHED 203\.0\.113\.30:5432/);
    assert.ok((await lookUp('chain.test')).includes(Buffer.from([203, 0, 113, 40]).toString('latin1')));
    assert.match(await tcp('203.0.113.40', 443, helloFor('chain.test')), /REACHED 203\.0\.113\.40:443/);
    await lookUp('a.b.wild.test');
    assert.match(await tcp('203.0.113.50', 443, helloFor('a.b.wild.test')), /REACHED 203\.0\.113\.50:443/);
    const [asked, other] = [helloFor('retry.wild.test'), helloFor('RETRY.wild.test')];
    await tcp('203.0.113.50', 443, asked, other.subarray(0, 40), other.subarray(40));
    assert.ok(
      lab.contacts.some(({ first }) => first.includes('RETRY.wild.test')),
      'a second hello of the same name',
    );
    const cut = helloFor('allowed.test');
    assert.match(
      await tcp('203.0.113.10', 443, cut.subarray(0, 3), cut.subarray(3, 60), cut.subarray(60)),
      /REACHED/,
    );
    assert.match(
      await tcp('203.0.113.10', 80, http('allowed.test'), http('allowed.test')),
      /REACHED[\s\S]*REACHED/,
    );
  });

  test('a denied attempt is told apart, and listed soon with the name', async () => {
    await lab.allow(ATTEMPTED_POLICY);
    lab.denials.length = 0;
    const asked_at = performance.now();
    await lookUp('evil.test');
    await until('the look-up', () =>
      lab.denials.some(({ name, address }) => name === 'evil.test' && address === null),
    );
    assert.ok(performance.now() - asked_at < WAIT_OF_ONE_MS + SEEN_MS);
    assert.match(
      await tcp('203.0.113.10', 80, http('evil.test')),
      /403 Forbidden[\s\S]*does not allow evil\.test/,
    );
    await tcp('203.0.113.10', 443, helloFor('evil.test'));
    await tcp('203.0.113.66', 443, helloFor('evil.test'));
    await tcp('203.0.113.66', 25);
    await until('all of them', () =>
      [
        ...['evil.test 203.0.113.10 80', 'evil.test 203.0.113.10 443'],
        // No allowed name has this address, so its first packet was refused.
        ...[' 203.0.113.66 443', ' 203.0.113.66 25'],
      ].every((wanted) =>
        lab.denials.some((each) => `${each.name ?? ''} ${each.address} ${each.port}` === wanted),
      ),
    );
  });

  test('a VM whose policy is not known is closed: its assignment may end before it does', async () => {
    await lab.forget();
    lab.contacts.length = 0;
    assert.equal(await lookUp('allowed.test'), '');
    await probe(ATTEMPTS);
    assert.deepEqual(lab.contacts, []);
  });

  test('mode deny closes everything', async () => {
    await lab.allow({ mode: 'deny', allow: ATTEMPTED_POLICY.allow });
    lab.contacts.length = 0;
    assert.equal((await lookUp('allowed.test')).charCodeAt(3) & 15, 3, 'NXDOMAIN');
    await probe(ATTEMPTS);
    assert.deepEqual(lab.contacts, []);
  });
});

/** The ICMP type, behind the IP header. */
const ECHO_REPLY = '00';

function http(host: string): Buffer {
  return Buffer.from(`GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
}

function counted(lab: EgressLab, name: string): number {
  const said = inNamespace(lab.path('internet'), 'nft', ['list', 'counter', 'inet', 'count', name]);
  return Number(/packets ([0-9]+)/.exec(said)?.[1]);
}
