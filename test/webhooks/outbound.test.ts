/**
 * Outbound requests, with real servers and a real name server on loopback. One address of 127.0.0.0/8 is a receiver that
 * the operator allows; another is an internal service that no URL may reach.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createResolve, Outbound } from '../../src/control-plane/webhooks/outbound.ts';
import { AppError } from '../../src/shared/errors.ts';
import { NameServer } from '../support/name-server.ts';
import { type Receiver, startReceiver } from '../support/receivers.ts';

const ALLOWED = '127.0.0.2';
const FORBIDDEN = '127.0.0.3';
const HEADERS = { 'content-type': 'application/json' };

let names: NameServer;
let outbound: Outbound;
let receiver: Receiver;
/** On the port of the receiver, so that a name whose address changes leads to it. */
let victim: Receiver;
let seen: { readonly url: string; readonly body: string; readonly host: string }[] = [];

before(async () => {
  receiver = await startReceiver(
    (request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (text: string) => {
        body += text;
      });
      request.on('end', () => {
        seen.push({ url: request.url ?? '', body, host: request.headers.host ?? '' });
        // Each request needs a new connection, and a check.
        response.writeHead(200, { connection: 'close' }).end('thanks');
      });
    },
    { host: ALLOWED },
  );
  victim = await startReceiver((_, response) => response.end('secret'), {
    host: FORBIDDEN,
    port: receiver.port,
  });
  names = await NameServer.start({
    'good.lab': [ALLOWED],
    'inner.lab': [FORBIDDEN],
    'inner6.lab': ['::1'],
    'mixed.lab': [ALLOWED, FORBIDDEN],
    'public.lab': ['93.184.216.34'],
    'metadata.lab': ['169.254.169.254'],
  });
  outbound = new Outbound({
    allow_cidrs: [{ address: ALLOWED, prefix: 32 }],
    resolve: createResolve([names.address]),
  });
});
after(async () => {
  await outbound.close();
  await names.close();
  await Promise.all([receiver.close(), victim.close()]);
});

const post = (url: string) => outbound.post(url, HEADERS, '{}');

async function refusedAtCreation(url: string): Promise<void> {
  await assert.rejects(
    outbound.checkUrl(url),
    (error) =>
      error instanceof AppError && error.code === 'INVALID_REQUEST' && error.details?.[0]?.field === 'url',
    url,
  );
}

test('a receiver gets method, path, headers and body, by address and by name', async () => {
  seen = [];
  for (const host of [ALLOWED, 'good.lab']) {
    const answer = await outbound.post(`http://${host}:${receiver.port}/hook?x=1`, HEADERS, '{"a":"ü"}');
    assert.deepEqual(
      { ...answer, response_headers: {}, latency_ms: 0 },
      {
        ...{ status: 200, error: null, response: 'thanks', response_headers: {} },
        ...{ latency_ms: 0, retry_after_seconds: null },
      },
    );
    assert.ok('date' in answer.response_headers);
    assert.ok(answer.latency_ms >= 0);
  }
  assert.deepEqual(seen, [
    { url: '/hook?x=1', body: '{"a":"ü"}', host: `${ALLOWED}:${receiver.port}` },
    { url: '/hook?x=1', body: '{"a":"ü"}', host: `good.lab:${receiver.port}` },
  ]);
});

const LITERALS = [
  ...[
    FORBIDDEN,
    '127.1',
    '2130706433',
    '2130706435',
    '0x7f000003',
    '017700000003',
    '0x7f.3',
    '0',
    '[::1]',
    '[::]',
  ],
  ...[
    '[::ffff:127.0.0.3]',
    '[::ffff:127.0.0.2]',
    '[::127.0.0.3]',
    '[64:ff9b::127.0.0.3]',
    '[64:ff9b:1::7f00:3]',
  ],
  ...[
    '[2002:7f00:3::]',
    '[2001::1]',
    '[2606:4700::5efe:127.0.0.3]',
    '[fe80::1]',
    '[fd00:ec2::254]',
    '[ff02::1]',
  ],
  ...['169.254.169.254', '168.63.129.16', '100.64.0.1', '10.0.0.1', '172.16.0.1', '192.168.0.1', '224.0.0.1'],
  ...['192.0.2.1', '198.18.0.1', '240.0.0.1', '255.255.255.255', '0.0.0.0'],
];

for (const literal of LITERALS) {
  test(`${literal} is refused at creation and at dial`, async () => {
    for (const protocol of ['https', 'http']) {
      const url = `${protocol}://${literal}:${receiver.port}/`;
      await refusedAtCreation(url);
      const answer = await post(url);
      assert.equal(answer.status, null);
      assert.match(answer.error ?? '', /^the address is not /);
    }
    assert.equal(victim.connections(), 0);
  });
}

test('a scoped literal is no URL', async () => {
  for (const url of ['https://[fe80::1%25lo]/', 'https://[fe80::1%lo]/', 'https://[::1%25lo]/']) {
    await refusedAtCreation(url);
    assert.equal((await post(url)).error, 'the URL cannot be used');
  }
});

for (const name of [
  'inner.lab',
  'inner6.lab',
  'mixed.lab',
  'metadata.lab',
  'localhost',
  'x.localhost',
  'LOCALHOST.',
]) {
  test(`${name} is refused at creation and at dial, whatever its address`, async () => {
    for (const protocol of ['https', 'http']) {
      const url = `${protocol}://${name}:${receiver.port}/`;
      await refusedAtCreation(url);
      const answer = await post(url);
      assert.match(answer.error ?? '', /^the address of the host is not /);
      assert.doesNotMatch(answer.error ?? '', /127\.|::1/, 'where a name leads is not told');
    }
    assert.equal(victim.connections(), 0);
  });
}

test('a public name is accepted, with TLS only; one that does not resolve is accepted, and checked when it is dialled', async () => {
  await outbound.checkUrl('https://public.lab/hook');
  await refusedAtCreation('http://public.lab/hook');
  await outbound.checkUrl('https://nowhere.lab/hook');
  await outbound.checkUrl('http://nowhere.lab/hook');
  assert.equal((await post('https://nowhere.lab/hook')).error, 'the name does not resolve');
});

test('a name that was good at creation and leads inside at dial is not dialled', async () => {
  const url = `http://good.lab:${receiver.port}/`;
  await outbound.checkUrl(url);
  assert.equal((await post(url)).status, 200);
  await names.set({ 'good.lab': [FORBIDDEN] });
  const answer = await post(url);
  assert.match(answer.error ?? '', /^the address of the host is not /);
  assert.equal(victim.connections(), 0);
});

test('a name whose address changes while it is dialled never reaches the internal service', async () => {
  const url = `http://good.lab:${receiver.port}/`;
  const answers = { sent: 0, refused: 0 };
  let flipping = true;
  const seenBoth = () => answers.sent > 0 && answers.refused > 0;
  const flip = async () => {
    try {
      for (let nth = 0; nth < 12 || (nth < 200 && !seenBoth()); nth++)
        await names.set({ 'good.lab': [nth % 2 === 0 ? FORBIDDEN : ALLOWED] });
    } finally {
      flipping = false;
    }
  };
  const dial = async () => {
    while (flipping) {
      const answer = await post(url);
      if (answer.status === 200) answers.sent++;
      else if (/^the address of the host is not /.test(answer.error ?? '')) answers.refused++;
      else assert.fail(JSON.stringify(answer));
    }
  };
  await Promise.all([flip(), dial(), dial(), dial()]);
  assert.ok(seenBoth(), JSON.stringify(answers));
  assert.equal(victim.connections(), 0);
});

test('a silent name server fails its own request only', async () => {
  const deaf = new Outbound({
    allow_cidrs: [],
    timeout_ms: 300,
    resolve: createResolve(['127.0.0.1:1']),
  });
  assert.match(
    (await deaf.post('https://example.lab/', HEADERS, '{}')).error ?? '',
    /does not resolve|no answer/,
  );
  await deaf.checkUrl('https://example.lab/');
  await deaf.close();
});
