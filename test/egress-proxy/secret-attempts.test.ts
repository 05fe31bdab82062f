/** A guest that tries to get a value, or to have it sent elsewhere, in network namespaces with the real rules and proxy. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { GuestSecret } from '../../src/protocol/egress-proxy-messages.ts';
import { PLACEHOLDER, SECRET_ATTEMPTS } from '../support/secret-attempts.ts';
import { fieldOf, type GotRequest, SecretLab } from '../support/secret-lab.ts';

const skip =
  process.getuid?.() !== 0 || spawnSync('nft', ['list', 'tables']).status !== 0
    ? 'network namespaces and firewall rules take root'
    : false;

const VALUE = 'sk-live-0123456789';
const OTHER_VALUE = 'sk-other-9876543210';
const ODD = ['expired.test', 'selfsigned.test', 'wrongname.test', 'rebind.test', 'self.test'];
const SECRETS: readonly GuestSecret[] = [
  { placeholder: PLACEHOLDER, hosts: ['api.test', ...ODD], value: VALUE },
  { placeholder: `berth-secret-${'f'.repeat(32)}`, hosts: ['other.test'], value: OTHER_VALUE },
];
const OPEN = { mode: 'open', allow: [] } as const;
const ALLOW = { mode: 'allow', allow: ['api.test', 'other.test', ...ODD] } as const;

/** Whether a request has a value where none may be: only header fields of requests for api.test itself may have this one. */
function isLeak(got: GotRequest): boolean {
  const { method, url, headers, body, trailers, sni, version } = got;
  const elsewhere = [method, url, body, ...trailers, ...headers.filter((_, at) => at % 2 === 0)];
  if (elsewhere.join('\n').includes('sk-')) return true;
  if (!headers.join('\n').includes('sk-')) return false;
  const host = version === '2.0' ? fieldOf(got, ':authority') : fieldOf(got, 'host');
  return sni !== 'api.test' || host.join() !== 'api.test' || headers.join('\n').includes(OTHER_VALUE);
}

describe('a guest that wants the value of a secret', { skip, timeout: 240_000 }, () => {
  let lab: SecretLab;
  before(async () => {
    lab = await SecretLab.open();
  });
  after(() => lab?.close());

  for (const policy of [OPEN, ALLOW]) {
    test(`none of ${SECRET_ATTEMPTS.length} attempts gets it, or has it sent elsewhere (mode ${policy.mode})`, async () => {
      assert.ok(SECRET_ATTEMPTS.length >= 20);
      await lab.allow(policy, SECRETS);
      lab.got.length = 0;
      lab.egress.contacts.length = 0;
      const fine = await lab.curl('-H', `X-Key: ${PLACEHOLDER}`, 'https://api.test/control');
      assert.equal(fine.status, 0, fine.said);
      assert.deepEqual(fieldOf(lab.got[0] ?? assert.fail('nothing arrived'), 'x-key'), [VALUE]);
      const prober = join(import.meta.dirname, '../support/secret-prober.ts');
      const { said } = await lab.run(process.execPath, [prober, '1500'], JSON.stringify(SECRET_ATTEMPTS));
      const answers = said
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as [string, string]);
      assert.equal(answers.length, SECRET_ATTEMPTS.length);
      const told = answers.filter(([, answer]) => /sk-(live|other)/.test(answer));
      assert.deepEqual(told, []);
      assert.deepEqual(lab.got.filter(isLeak), []);
      const seen = lab.egress.contacts.filter(({ first }) => (first ?? '').includes('sk-'));
      assert.deepEqual(seen, []);
      // Another host than that of TLS reached no server of the secret.
      const hosts = lab.got.flatMap((got) => (got.sni === 'api.test' ? fieldOf(got, 'host') : []));
      assert.deepEqual(
        hosts.filter((host) => host !== 'api.test'),
        [],
      );
      for (const [name, answer] of answers) {
        if (name === 'another host') assert.match(answer, /^HTTP\/1.1 421 /);
        if (name === 'TRACE') assert.match(answer, /^HTTP\/1.1 405 /);
        if (name === 'HTTP/2: another authority') assert.match(answer, /":status":421/);
      }
    });
  }

  test('a redirect takes the placeholder along, not the value', async () => {
    await lab.allow(OPEN, SECRETS);
    lab.egress.contacts.length = 0;
    await lab.curl('-kL', '-H', `X-Key: ${PLACEHOLDER}`, 'https://api.test/redirect');
    assert.ok(lab.egress.contacts.some(({ address, port }) => address === '203.0.113.66' && port === 443));
    assert.ok(!lab.egress.contacts.some(({ first }) => (first ?? '').includes('sk-')));
  });
});
