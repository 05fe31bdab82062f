import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../../shared/ids.ts';
import { locationOf } from './lockout.ts';

const user_id = newId('usr');
const FIREFOX = 'Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0';
const same = (a: [string, string], b: [string, string]) =>
  locationOf(user_id, { ip: a[0], user_agent: a[1] }).equals(
    locationOf(user_id, { ip: b[0], user_agent: b[1] }),
  );

test('a location is a network and a browser, whatever its version', () => {
  assert.ok(same(['203.0.113.7', FIREFOX], ['203.0.113.250', FIREFOX.replaceAll('128.0', '131.0.2')]));
  assert.ok(!same(['203.0.113.7', FIREFOX], ['203.0.114.7', FIREFOX]));
  assert.ok(!same(['203.0.113.7', FIREFOX], ['203.0.113.7', 'curl/8.5.0']));
});

test('of IPv6 the first 48 bits count, however they are written; IPv4 in IPv6 is IPv4', () => {
  assert.ok(same(['2001:db8:1:2::5', ''], ['2001:0db8:0001:ffff::1', '']));
  assert.ok(!same(['2001:db8:1::5', ''], ['2001:db8:2::5', '']));
  assert.ok(same(['2001:db8::5', ''], ['2001:db8:0:9:8:7:6:5', '']));
  assert.ok(same(['::ffff:203.0.113.7', ''], ['203.0.113.9', '']));
});

test('the hashes of one location differ between users', () => {
  const caller = { ip: '203.0.113.7', user_agent: FIREFOX };
  assert.ok(!locationOf(user_id, caller).equals(locationOf(newId('usr'), caller)));
});
