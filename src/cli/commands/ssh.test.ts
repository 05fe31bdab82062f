import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Instance } from '../../../client/src/berth.ts';
import { CommandError } from '../command-error.ts';
import { checkedDetails, type Details } from './ssh.ts';

const INSTANCE = { id: `inst_${'0'.repeat(26)}`, name: 'web' } as Instance;
const WAY: Details = {
  host: '127.0.0.1',
  port: 22_000,
  user: 'root',
  known_hosts: ['[127.0.0.1]:22000 ssh-ed25519 AAAA'],
};

test('names and addresses are accepted', () => {
  for (const host of ['127.0.0.1', '::1', 'Berth.example.org', 'a']) {
    const way = { ...WAY, host };
    assert.equal(checkedDetails(INSTANCE, way), way);
  }
});

test('anything with a meaning for ssh or a file system is refused', () => {
  const option = '-oProxyCommand=touch /tmp/made';
  const line = '\n  ProxyCommand touch /tmp/made';
  for (const [instance, way] of [
    [{ id: '../../../.bashrc' }, {}],
    [{ name: `web${line}` }, {}],
    [{}, { user: option }],
    [{}, { user: `root${line}` }],
    [{}, { user: 'root\n' }],
    [{}, { host: option }],
    [{}, { host: `127.0.0.1${line}` }],
    [{}, { host: '%d' }],
    [{}, { port: `22${line}` }],
    [{}, { known_hosts: ['a b c\n* ssh-ed25519 AAAA'] }],
  ] as [Partial<Instance>, Partial<Details>][]) {
    assert.throws(() => checkedDetails({ ...INSTANCE, ...instance }, { ...WAY, ...way }), CommandError);
  }
});
