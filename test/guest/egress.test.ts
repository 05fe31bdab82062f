/** An egress policy from the API to a real guest: attempts to bypass it, changes, restarts of the agent, suspend and fork. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { ATTEMPTED_POLICY, ATTEMPTS, dnsQuery, probeLines } from '../support/egress-attempts.ts';
import { EgressOutside, isLeak, NAME_SERVER } from '../support/egress-outside.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { helloFor } from '../support/tls-hello.ts';
import { until } from '../support/waiting.ts';

const IN_EFFECT_MS = 2_000;
/** How long one attempt of an emulated guest takes. */
const TRY_MS = 5_000;
/** Promised is a second; a busy machine takes longer. */
const SEEN_MS = 5_000;
const PROBE = readFileSync(join(import.meta.dirname, '../support/egress-probe.pl'), 'utf8');
const MAIN = join(import.meta.dirname, '../../src/main.ts');

interface Denied {
  readonly data: readonly { at: string; name?: string; address?: string; port?: number; count: number }[];
}

describe('a guest with an egress policy', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-names-'));
  let outside: EgressOutside;
  let berth: Installation;
  let guest: GuestInstance;

  before(async () => {
    outside = await EgressOutside.open(null, `eg${process.pid}`);
    // Berth lets only the default route's interface forward.
    writeFileSync(`/proc/sys/net/ipv4/conf/eg${process.pid}/forwarding`, '1');
    writeFileSync(join(folder, 'resolv.conf'), `nameserver ${NAME_SERVER}\n`);
    // A copy of another test's mount would keep its device busy.
    const alone = `awk '$2 ~ "^/tmp/" { print $2 }' /proc/mounts | sort -r | xargs -r umount -l`;
    const mounted = `${alone}; mount --bind ${folder}/resolv.conf /etc/resolv.conf && exec "$@"`;
    const program = [
      'unshare',
      '--mount',
      'sh',
      '-c',
      mounted,
      'sh',
      process.execPath,
      MAIN,
      'start',
    ] as const;
    berth = await Installation.start({ program });
    guest = await GuestInstance.running(berth, 'web', { egress: ATTEMPTED_POLICY });
  });
  after(async () => {
    await berth?.dispose();
    await outside?.close();
    rmSync(folder, { recursive: true, force: true });
  });

  const change = (egress: object) => berth.client.expect(200, 'PATCH', guest.path, { egress });
  const denied = async () =>
    (await berth.client.expect<Denied>(200, 'GET', `${guest.path}/vm/egress/denied`)).data;

  /** The answers in hexadecimal by line, '' for none. */
  async function probe(lines: string, of = guest): Promise<string[]> {
    const input = `${lines}end\n`;
    const said = await berth.ssh.run(
      of.target,
      `cat > /tmp/probe.pl <<'PROBE'\n${PROBE}\nPROBE\nperl /tmp/probe.pl`,
      {
        input,
      },
    );
    const answers: string[] = [];
    for (const line of said.stdout.trim().split('\n')) {
      const [id = '', hex = ''] = line.split(' ');
      answers[Number(id)] = hex === '-' ? '' : hex;
    }
    assert.ok(answers.length > 0, said.stderr);
    return answers;
  }
  const lookUp = (name: string, of = guest) =>
    probe(`0 udp 10.0.2.3 53 2000 ${dnsQuery(name).toString('hex')}\n`, of);
  const tls = async (address: string, name: string, of = guest) => {
    const [hex = ''] = await probe(`0 tcp ${address} 443 2000 ${helloFor(name).toString('hex')}\n`, of);
    return Buffer.from(hex, 'hex').toString('latin1');
  };

  test('what the policy allows works', async () => {
    await lookUp('allowed.test');
    assert.match(await tls('203.0.113.10', 'allowed.test'), /REACHED 203\.0\.113\.10:443/);
    const [hex = ''] = await probe(`0 tcp 203.0.113.20 8080 2000 6869\n`);
    assert.match(Buffer.from(hex, 'hex').toString('latin1'), /REACHED/);
  });

  test(`none of ${ATTEMPTS.length} attempts to bypass the policy reaches a server`, async () => {
    for (const name of ['allowed.test', 'mixed.test', 'chain.test', 'x.wild.test', 'db.test'])
      await lookUp(name);
    outside.contacts.length = 0;
    const answers = await probe(probeLines(ATTEMPTS, 1_000));
    assert.deepEqual(outside.contacts.filter(isLeak), []);
    const told = ATTEMPTS.filter(
      ({ forbidden }, id) => forbidden && Buffer.from(answers[id] ?? '', 'hex').includes(forbidden),
    );
    assert.deepEqual(
      told.map(({ name }) => name),
      [],
    );
  });

  test('a denied attempt is listed within a second, with the name, and makes one event', async () => {
    await lookUp('first.evil.test');
    const asked_at = performance.now();
    await until('it is listed', async () => (await denied()).some(({ name }) => name === 'first.evil.test'));
    assert.ok(performance.now() - asked_at < SEEN_MS, `after ${performance.now() - asked_at} ms`);
    const listed = await denied();
    assert.ok(
      listed.length <= 100 && listed.some(({ address, port }) => address === '203.0.113.66' && port === 22),
    );
    const { data } = await berth.client.expect<{ data: unknown[] }>(
      200,
      'GET',
      '/v1/events?type=egress.denied',
    );
    assert.ok(data.length > 0 && data.length <= 10);
  });

  test('a change takes effect within 2 s', async () => {
    const look_up = `0 udp 10.0.2.3 53 500 ${dnsQuery('evil.test').toString('hex')}`;
    const reach = `1 tcp 203.0.113.66 443 500 ${helloFor('evil.test').toString('hex')}`;
    const again = `while :; do echo '${look_up}'; echo '${reach}'; sleep 0.2; done`;
    const trying = berth.ssh.run(guest.target, `timeout 20 sh -c "${again}" | perl /tmp/probe.pl`);
    const started_at = Date.now();
    // Opening the session, which may take seconds, is no part of the change.
    await until('it tries in vain', async () =>
      (await denied()).some(({ name, at }) => name === 'evil.test' && Date.parse(at) > started_at),
    );
    const reached = () =>
      outside.contacts.filter(({ address, first }) => address === '203.0.113.66' && first !== '');
    outside.contacts.length = 0;
    const allowed_at = performance.now();
    await change({ allow: ['evil.test'] });
    const first = await until('it is reached', () => reached()[0]);
    assert.ok(first.at_ms - allowed_at < IN_EFFECT_MS + TRY_MS, `after ${first.at_ms - allowed_at} ms`);
    await change({ mode: 'deny' });
    const denied_at = performance.now();
    await trying;
    const late = reached().filter(({ at_ms }) => at_ms > denied_at + IN_EFFECT_MS);
    assert.deepEqual(late, []);
  });

  test('the policy holds without the agent, and works again with the next', async () => {
    await change({ mode: 'allow', allow: ['allowed.test'] });
    await until('the name can be looked up', async () =>
      (await lookUp('allowed.test'))[0]?.includes('cb00710a'),
    );
    await berth.kill('agent');
    outside.contacts.length = 0;
    await tls('203.0.113.66', 'evil.test');
    assert.deepEqual(outside.contacts.filter(isLeak), []);
    await berth.recovered('agent');
    await until('it works again', async () => /REACHED/.test(await tls('203.0.113.10', 'allowed.test')));
    await tls('203.0.113.66', 'evil.test');
    assert.deepEqual(outside.contacts.filter(isLeak), []);
  });

  test('the policy holds after suspend and resume, and in a fork', async () => {
    await berth.client.expect(202, 'POST', `${guest.path}/vm/suspend`);
    await guest.reached('suspended');
    await guest.start();
    outside.contacts.length = 0;
    await lookUp('allowed.test');
    assert.match(await tls('203.0.113.10', 'allowed.test'), /REACHED/);
    const fork = await guest.fork('child');
    await fork.start();
    await fork.learnHost();
    assert.ok(!(await lookUp('evil.test', fork))[0]?.includes('cb007142'));
    await tls('203.0.113.66', 'evil.test', fork);
    await tls('203.0.113.66', 'evil.test');
    assert.deepEqual(outside.contacts.filter(isLeak), []);
  });

  test('a stopped VM still shows what it was denied', async () => {
    await guest.stop();
    assert.ok((await denied()).length > 0);
  });
});
