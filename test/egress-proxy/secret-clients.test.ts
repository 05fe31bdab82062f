/** Usual clients and the servers that their secrets are for, through the proxy, in network namespaces. */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import type { GuestSecret } from '../../src/protocol/egress-proxy-messages.ts';
import { fieldOf, SecretLab } from '../support/secret-lab.ts';
import { until } from '../support/waiting.ts';

const skip =
  process.getuid?.() !== 0 || spawnSync('nft', ['list', 'tables']).status !== 0
    ? 'network namespaces and firewall rules take root'
    : false;

const OPEN = { mode: 'open', allow: [] } as const;
const PLACEHOLDER = `berth-secret-${'0123456789abcdef'.repeat(2)}`;
const VALUE = 'sk-live-Zm9vYmFy-ünïcode';
/** As a server gets it. */
const BYTES = Buffer.from(VALUE, 'utf8').toString('latin1');
const SECRET: GuestSecret = { placeholder: PLACEHOLDER, hosts: ['api.test'], value: VALUE };
const BEARER = `Authorization: Bearer ${PLACEHOLDER}`;

const PYTHON = `
import requests
s = requests.Session()
for path in ['/one', '/two']:
  r = s.post('https://api.test' + path, headers={'Authorization': 'Bearer ${PLACEHOLDER}'}, data=b'hello')
  print(r.status_code, r.text.strip())
print(s.get('https://api.test/basic', auth=('user', '${PLACEHOLDER}')).status_code)
`;
const NODE_FETCH = `
const r = await fetch('https://api.test/fetch', { method: 'POST', body: 'hello', headers: { authorization: 'Bearer ${PLACEHOLDER}' } });
console.log(r.status, (await r.text()).trim());
`;

describe('a client with the placeholder of a secret', { skip, timeout: 120_000 }, () => {
  let lab: SecretLab;
  before(async () => {
    lab = await SecretLab.open({ GIT_PASSWORD: VALUE });
  });
  after(() => lab?.close());
  beforeEach(async () => {
    await lab.allow(OPEN, [SECRET]);
    lab.got.length = 0;
  });

  const last = () => lab.got.at(-1) ?? assert.fail('no request arrived');
  const bearer = () => fieldOf(last(), 'authorization');

  for (const [flag, version] of [
    ['--http1.1', '1.1'],
    ['--http2', '2.0'],
  ] as const) {
    const curl = (...args: string[]) => lab.curl(flag, ...args);

    test(`curl by HTTP/${version} sends the value, and speaks the same protocol with the server`, async () => {
      const { said, status } = await curl(
        '-H',
        BEARER,
        '-H',
        `X-Two: ${PLACEHOLDER} ${PLACEHOLDER}`,
        'https://api.test/a?b=c',
      );
      assert.equal(status, 0, said);
      assert.equal(said, `${version} GET 0\n`);
      assert.deepEqual([last().url, bearer()], ['/a?b=c', [`Bearer ${BYTES}`]]);
      assert.deepEqual(fieldOf(last(), 'x-two'), [`${BYTES} ${BYTES}`]);
    });

    test(`curl by HTTP/${version} sends the value in Basic, and keeps the placeholder in URL and body`, async () => {
      const { status } = await curl(
        '-u',
        `user:${PLACEHOLDER}`,
        '-d',
        PLACEHOLDER,
        `https://api.test/${PLACEHOLDER}`,
      );
      assert.equal(status, 0);
      assert.deepEqual(bearer(), [`Basic ${Buffer.from(`user:${VALUE}`).toString('base64')}`]);
      assert.deepEqual([last().url, last().body], [`/${PLACEHOLDER}`, PLACEHOLDER]);
    });

    test(`HTTP/${version}: HEAD, 304, early hints and trailers pass, and Alt-Svc does not`, async () => {
      const head = await curl('-I', '-H', BEARER, 'https://api.test/');
      assert.match(head.said, /^HTTP\/[0-9.]+ 200/);
      assert.doesNotMatch(head.said, /alt-svc/i);
      assert.match((await curl('-i', 'https://api.test/nothing')).said, /304[\s\S]*etag: "1"/i);
      const hints = await curl('-i', 'https://api.test/hints');
      assert.match(hints.said, /^HTTP\/[0-9.]+ 103[\s\S]*rel=preload[\s\S]* 200/);
      assert.match(hints.said, /x-name: é/i);
      assert.match(hints.said, /x-sum: 0/i);
    });

    test(`HTTP/${version}: large bodies pass in both directions`, async () => {
      const down = await curl(
        '-H',
        BEARER,
        '-o',
        '/dev/null',
        '-w',
        '%{size_download}',
        'https://api.test/big?mib=40',
      );
      assert.equal(down.said, String(40 * 2 ** 20));
      const body = Buffer.alloc(20 * 2 ** 20, 'y');
      const sent = ['--data-binary', '@-', '-H', 'Expect: 100-continue', '-H', BEARER];
      const up = await lab.run(
        'curl',
        ['-sS', flag, '--max-time', '30', ...sent, 'https://api.test/up'],
        body,
      );
      assert.equal(up.status, 0);
      assert.equal(last().body, `${body.length} bytes`);
    });

    test(`HTTP/${version}: an event arrives before the next one is sent`, async () => {
      const child = lab.start('curl', ['-sSN', flag, '-H', BEARER, 'https://api.test/events']);
      let said = '';
      child.stdout?.on('data', (part: Buffer) => {
        said += part.toString();
      });
      await until('the first event', () => said === 'data: 1\n\n');
      await curl('https://api.test/next');
      await until('the second', () => said === 'data: 1\n\ndata: 2\n\n' && child.exitCode === 0);
    });

    test(`HTTP/${version}: a client that disconnects ends its request at the server`, async () => {
      const child = lab.start('curl', ['-sSN', flag, '-H', BEARER, '-T', '.', 'https://api.test/held']);
      let said = '';
      child.stdout?.on('data', (part: Buffer) => {
        said += part.toString();
      });
      await until('the answer has begun', () => said === 'held\n');
      child.kill('SIGKILL');
      await until('the server sees the end', () => lab.got.some(({ method }) => method === 'CLOSED'));
    });
  }

  test('Python requests sends the value, and keeps its connection', async () => {
    const { said } = await lab.run('python3', ['-c', PYTHON]);
    assert.equal(said, '200 1.1 POST 5\n200 1.1 POST 5\n200\n');
    assert.deepEqual(fieldOf(lab.got[0] ?? assert.fail(), 'authorization'), [`Bearer ${BYTES}`]);
    assert.deepEqual(bearer(), [`Basic ${Buffer.from(`user:${VALUE}`).toString('base64')}`]);
  });

  test("Node's fetch sends the value", async () => {
    const { said } = await lab.run(process.execPath, ['--input-type=module', '-e', NODE_FETCH]);
    assert.match(said, /^200 \S+ POST 5\n$/);
    assert.deepEqual(bearer(), [`Bearer ${BYTES}`]);
  });

  test('git clones with a name and the placeholder as password', async () => {
    lab.makeRepository();
    const target = join(lab.folder, 'cloned');
    const { status, said } = await lab.run('git', [
      'clone',
      '-q',
      `https://user:${PLACEHOLDER}@api.test/repo.git`,
      target,
    ]);
    assert.equal(status, 0, said);
    assert.match(
      execFileSync('git', ['-C', target, 'log', '--format=%s'], { encoding: 'utf8' }),
      /^first\n$/,
    );
    assert.doesNotMatch(readFileSync(join(target, '.git/config'), 'utf8'), /sk-live/);
  });

  test('a WebSocket handshake carries the value, and then bytes pass in both directions', async () => {
    const handshake = `GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Key: ${PLACEHOLDER}\r\n\r\n`;
    const child = lab.start('openssl', [
      's_client',
      '-quiet',
      '-connect',
      'api.test:443',
      '-servername',
      'api.test',
    ]);
    let said = '';
    child.stdout?.on('data', (part: Buffer) => {
      said += part.toString();
    });
    child.stdin?.write(handshake);
    await until('the server accepts', () => said.endsWith('\r\n\r\nfirst'));
    assert.deepEqual(fieldOf(last(), 'x-key'), [BYTES]);
    child.stdin?.write(`${PLACEHOLDER}.`);
    await until('what was sent comes back', () => said.endsWith(`first${PLACEHOLDER}.`));
    child.kill('SIGKILL');
  });

  test('other servers keep their own certificate and get the placeholder', async () => {
    const seen = await lab.curl('-k', '-w', '%{certs}', '-H', BEARER, 'https://other.test/');
    assert.match(seen.said, /Issuer:[^\n]*Berth secrets of internet/);
    assert.deepEqual(bearer(), [`Bearer ${PLACEHOLDER}`]);
  });

  for (const [name, reason] of [
    ['expired.test', /certificate has expired/],
    ['selfsigned.test', /self-signed certificate/],
    ['wrongname.test', /does not match certificate/],
  ] as const) {
    test(`${name} gets nothing, and the client and the host's log learn why`, async () => {
      await lab.allow(OPEN, [{ ...SECRET, hosts: [name] }]);
      const { said } = await lab.curl('-i', '-H', BEARER, `https://${name}/`);
      assert.match(said, /^HTTP\/1.1 502 /);
      assert.match(said, reason);
      assert.deepEqual(lab.got, []);
      await until('the log', () =>
        lab.egress.server_failures.some((each) => each.startsWith(name) && reason.test(each)),
      );
      assert.ok(!lab.egress.server_failures.join().includes('sk-live'));
    });
  }

  test('in mode allow a secret opens nothing: its host must be allowed too', async () => {
    await lab.allow({ mode: 'allow', allow: ['other.test'] }, [SECRET]);
    const closed = await lab.curl('-H', BEARER, 'https://api.test/');
    assert.equal(closed.status, 7);
    await lab.allow({ mode: 'deny', allow: ['api.test'] }, [SECRET]);
    assert.equal((await lab.curl('-H', BEARER, 'https://api.test/')).status, 7);
    assert.deepEqual(lab.got, []);
    for (const allow of [['api.test'], ['203.0.113.71'], ['203.0.113.71:443', 'other.test']]) {
      await lab.allow({ mode: 'allow', allow }, [SECRET]);
      const { said } = await lab.curl('-H', BEARER, 'https://api.test/');
      assert.match(said, /^2.0 GET 0/, allow.join());
      assert.deepEqual(bearer(), [`Bearer ${BYTES}`]);
    }
  });
});
