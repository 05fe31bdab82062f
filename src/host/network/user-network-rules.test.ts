import assert from 'node:assert/strict';
import { BlockList } from 'node:net';
import { test } from 'node:test';
import { CLOSED_IPV4, CLOSED_IPV6 } from '../../shared/networks.ts';
import { egressProxyUid, VM_UID_BASE, VM_UID_COUNT } from '../qemu/uid.ts';
import { dataFolderId, egressRules, parseResolvers } from './user-network-rules.ts';

function closed(address: string): boolean {
  const family = address.includes(':') ? 'ipv6' : 'ipv4';
  const list = new BlockList();
  for (const range of family === 'ipv6' ? CLOSED_IPV6 : CLOSED_IPV4) {
    const [net = '', bits] = range.split('/');
    list.addSubnet(net, Number(bits), family);
  }
  return list.check(address, family);
}

test('loopback, private, shared, link-local, metadata, multicast and reserved addresses are closed', () => {
  const addresses = [
    ...['127.0.0.1', '127.255.255.254', '0.0.0.0', '10.0.2.2', '172.16.0.1', '172.31.255.255', '192.168.1.1'],
    ...['100.64.0.1', '100.127.255.255', '169.254.169.254', '168.63.129.16', '224.0.0.1', '239.1.1.1'],
    ...['240.0.0.1', '255.255.255.255', '198.18.0.1', '::', '::1', '::ffff:127.0.0.1', '64:ff9b::a00:1'],
    ...['fe80::1', 'fec0::1', 'fc00::1', 'fd00:ec2::254', 'ff02::1', '2002:7f00:1::', '2001::1', '4000::1'],
  ];
  assert.deepEqual(
    addresses.filter((address) => !closed(address)),
    [],
  );
});

test('public addresses stay open', () => {
  const addresses = ['1.1.1.1', '9.9.9.9', '172.32.0.1', '100.128.0.1', '192.169.0.1', '151.101.0.1'];
  const addresses_v6 = ['2606:4700::1111', '2a00:1450:4001::1', '2001:4860:4860::8888', '2620:fe::fe'];
  assert.deepEqual([...addresses, ...addresses_v6].filter(closed), []);
});

test('replies and DNS (port 53 only) to the host’s resolvers are accepted before blocked networks are rejected', () => {
  const text = egressRules({ data_folder_id: 'a', resolvers: ['127.0.0.53', 'fd00::53'] });
  const established = text.indexOf('ct state established');
  const dns = text.indexOf('ip daddr { 127.0.0.53 } udp dport 53 accept');
  assert.ok(established !== -1 && established < dns && dns < text.indexOf('oifname "lo"'));
  assert.ok(text.includes('ip6 daddr { fd00::53 } tcp dport 53 accept'));
});

test('the networks that the host is on are closed, whatever their addresses', () => {
  const host_networks = ['203.0.113.7/24', 'fd00::2/64', 'x/24', '1.2.3.4/8 accept'];
  const text = egressRules({ data_folder_id: 'a', resolvers: [], host_networks });
  assert.ok(
    text.includes('ip daddr 203.0.113.7/24 goto refuse') && text.includes('ip6 daddr fd00::2/64 goto refuse'),
  );
  assert.ok(!text.includes('x/24') && !text.includes('1.2.3.4'));
});

test('a hostile table name or resolver cannot add rules', () => {
  assert.throws(() => egressRules({ data_folder_id: 'a; flush ruleset', resolvers: [] }), {
    name: 'InvariantError',
  });
  assert.ok(
    !egressRules({ data_folder_id: 'a', resolvers: ['1.1.1.1 } accept', '::1%lo'] }).includes('dport'),
  );
});

test('resolvers are read as the C library reads them', () => {
  const text =
    '# nameserver 1.1.1.1\nnameserver 127.0.0.53\nnameserver\tfd00::1\nnameserver x\noptions edns0\n';
  assert.deepEqual(parseResolvers(text), ['127.0.0.53', 'fd00::1']);
});

test('each installation has its own egress proxy’s user, so the rules that a removed one left do not bind another’s', () => {
  const [one, other] = ['/var/lib/berth', '/srv/berth'].map(dataFolderId) as [string, string];
  assert.notEqual(egressProxyUid(one), egressProxyUid(other));
  for (const id of [one, other]) assert.ok(egressProxyUid(id) >= VM_UID_BASE + VM_UID_COUNT);
  const rules = egressRules({ data_folder_id: one, resolvers: [], egress_proxy_uid: egressProxyUid(one) });
  assert.ok(rules.includes(`meta skuid ${egressProxyUid(one)} jump guest`));
  assert.ok(!rules.includes(String(egressProxyUid(other))));
});
