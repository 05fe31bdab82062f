import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { hostnameOf, newLabel, nextCheckS, readHostname, requestsPerMinute, urlOf } from './model.ts';

const NAME = fc.stringMatching(/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/);
const RANDOM = fc.uint8Array({ minLength: 8, maxLength: 8 });

test('a label is a DNS label that begins with the name and ends with eight characters of the randomness', () => {
  fc.assert(
    fc.property(NAME, RANDOM, (name, random) => {
      const label = newLabel(name, random);
      assert.match(label, /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/);
      const [, begin = '', end = ''] = /^(.*)-([0-9a-hjkmnp-tv-z]{8})$/.exec(label) ?? [];
      assert.ok(name.startsWith(begin) && end.length === 8, label);
      assert.ok(begin.length >= Math.min(name.length, 53), label);
    }),
  );
});

test('a URL shows the port unless it is the scheme’s own', () => {
  const endpoint = { domain: 'apps.example.org', scheme: 'https', port: null } as const;
  assert.equal(urlOf(endpoint, hostnameOf(endpoint, 'web-1')), 'https://web-1.apps.example.org');
  assert.equal(urlOf({ ...endpoint, scheme: 'http', port: 7480 }, 'a.localhost'), 'http://a.localhost:7480');
});

test('no text becomes a hostname of Berth, an address, or anything that is no host name', () => {
  const own = ['berth.example.org', '10.0.0.1'];
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.domain(), fc.webAuthority(), fc.ipV4(), fc.ipV6()), (text) => {
      const read = readHostname(text, 'apps.example.org', own);
      if ('issue' in read) return;
      const { hostname } = read;
      assert.match(hostname, /^[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})+$/);
      assert.equal(new URL(`http://${hostname}`).hostname, hostname);
      assert.doesNotMatch(hostname, /(^|\.)(apps\.example\.org|berth\.example\.org|localhost)$/);
    }),
  );
  for (const text of ['x.apps.example.org', 'Berth.example.org', 'a.berth.example.org', '10.0.0.1'])
    assert.ok('issue' in readHostname(text, 'apps.example.org', own), text);
});

test('an active hostname is checked daily, a pending one at least hourly and at most every 5 s', () => {
  assert.equal(nextCheckS(true, 0), 86_400);
  assert.deepEqual(
    [0, 60, 600, 86_400, 864_000].map((age) => nextCheckS(false, age)),
    [5, 6, 60, 3600, 3600],
  );
});

test('requests a minute move with the minute, and never exceed what was counted', () => {
  const minute = new Date('2026-11-25T09:12:00.000Z');
  const counts = { minute, requests: 30, previous_requests: 60 };
  const at = (seconds: number) => requestsPerMinute(counts, minute.getTime() + seconds * 1_000);
  assert.deepEqual(
    [at(0), at(30), at(59.99), at(60), at(90), at(120), at(1_000)],
    [90, 60, 30, 30, 15, 0, 0],
  );
  assert.equal(requestsPerMinute(null, 0), 0);
  // The database's clock may be ahead.
  assert.equal(at(-5), 90);
});
