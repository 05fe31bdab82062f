import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Flows, newFlow, ownPath } from './provider.ts';

const PUBLIC = 'https://berth.example.org';

test('the way back leads to a path of the console, and never to another site', () => {
  for (const good of ['/', '/instances', '/instances/web/terminal?a=b&c=d', '/instances/%C3%A4']) {
    assert.equal(ownPath(good, PUBLIC), good);
  }
  const bad = [
    '',
    'instances',
    '//evil.test',
    '/\\evil.test',
    '\\\\evil.test',
    'https://evil.test',
    '/..//evil.test',
  ];
  bad.push(
    '/.//evil.test',
    '/%2e%2e//evil.test',
    '/a\nb',
    '/a#b',
    '/v1/me',
    '/v1',
    '/../v1/me',
    'javascript:alert(1)',
  );
  for (const each of bad) assert.equal(ownPath(each, PUBLIC), '/', each);
});

test('a flow is opened from its own cookie alone, for ten minutes', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_800_000_000_000 });
  const flows = new Flows(Buffer.alloc(32, 1));
  const flow = newFlow(null, '/');
  const cookie = flows.seal(flow);
  assert.deepEqual(flows.open(cookie), flow);
  assert.equal(new Flows(Buffer.alloc(32, 2)).open(cookie), null);
  assert.equal(flows.open(`${cookie.slice(0, -2)}AA`), null);
  assert.equal(flows.open(''), null);
  t.mock.timers.tick(601_000);
  assert.equal(flows.open(cookie), null);
});
