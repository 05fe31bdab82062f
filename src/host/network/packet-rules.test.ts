import assert from 'node:assert/strict';
import { BlockList } from 'node:net';
import { test } from 'node:test';
import { CLOSED_IPV4, CLOSED_IPV6 } from '../../shared/networks.ts';
import { egressProxyUid, VM_UID_BASE, VM_UID_COUNT } from '../qemu/confinement.ts';
import { GUEST, guestAddress } from './addresses.ts';
import { dataFolderId, hostChains, hostRules, parseResolvers, sumWord, tapRules } from './packet-rules.ts';

/** RFC 1071, of 16-bit words. */
function checksum(words: readonly number[]): number {
  let sum = words.reduce((total, word) => total + word, 0);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}

function wordsOf(address: string): number[] {
  const [a = 0, b = 0, c = 0, d = 0] = address.split('.').map(Number);
  return [(a << 8) + b, (c << 8) + d];
}

test('an ICMP error keeps its checksum when the address in it becomes the guest’s', () => {
  for (let port = 1; port <= 65_535; port++) {
    const address = guestAddress(port);
    const before = checksum([0x0303, 0, ...wordsOf(address), 0x4500]);
    const after = checksum([0x0303, sumWord(address, GUEST), ...wordsOf(GUEST), 0x4500]);
    assert.equal(after, before, address);
  }
});

test('every slot gives another address, and what is no slot is refused', () => {
  const addresses = [1, 22_000, 65_535].map(guestAddress);
  assert.deepEqual(addresses, ['198.18.0.1', '198.18.85.240', '198.18.255.255']);
  for (const port of [0, -1, 1.5, 65_536]) assert.throws(() => guestAddress(port), /slot/);
});

test('a MAC address cannot add a rule', () => {
  assert.throws(() => tapRules({ slot: 22_000, mac: '52:54:00:00:00:00 accept' }), /MAC/);
});

const about = { link: 'berth-0123abcd', resolvers: ['192.0.2.53'] };

test('a host that did not forward before forwards from its uplinks to guests only', () => {
  const rule = 'iifname { "eth0", "eth1" } oifname != "berth-*" drop';
  const chains = hostChains({ ...about, uplinks: ['eth0', 'eth1'] }).join('\n');
  assert.ok(chains.includes(rule));
  // A host that forwarded before keeps what it forwards.
  assert.ok(
    !hostChains({ ...about, uplinks: [] })
      .join('\n')
      .includes('oifname != "berth-*" drop'),
  );
});

test('only the host itself opens connections to guests, and guests reach only its resolvers', () => {
  const lines = hostChains({ ...about, uplinks: [] }).map((line) => line.trim());
  assert.ok(lines.includes('oifname "berth-0123abcd" ct state != { established, related } drop'));
  const from_guests = lines.slice(lines.indexOf('chain from_guests {') + 1);
  assert.deepEqual(from_guests.slice(0, from_guests.indexOf('}')), [
    'ct state established,related accept',
    'ip daddr { 192.0.2.53 } udp dport 53 accept',
    'ip daddr { 192.0.2.53 } tcp dport 53 accept',
    'goto refuse',
  ]);
});

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
  const text = hostRules({ data_folder_id: 'a', resolvers: ['127.0.0.53', 'fd00::53'] });
  const established = text.indexOf('ct state established');
  const dns = text.indexOf('ip daddr { 127.0.0.53 } udp dport 53 accept');
  assert.ok(established !== -1 && established < dns && dns < text.indexOf('oifname "lo"'));
  assert.ok(text.includes('ip6 daddr { fd00::53 } tcp dport 53 accept'));
});

test('the networks that the host is on are closed, whatever their addresses', () => {
  const host_networks = ['203.0.113.7/24', 'fd00::2/64', 'x/24', '1.2.3.4/8 accept'];
  const text = hostRules({ data_folder_id: 'a', resolvers: [], host_networks });
  assert.ok(
    text.includes('ip daddr 203.0.113.7/24 goto refuse') && text.includes('ip6 daddr fd00::2/64 goto refuse'),
  );
  assert.ok(!text.includes('x/24') && !text.includes('1.2.3.4'));
});

test('a hostile table name or resolver cannot add rules', () => {
  assert.throws(() => hostRules({ data_folder_id: 'a; flush ruleset', resolvers: [] }), {
    name: 'InvariantError',
  });
  assert.ok(!hostRules({ data_folder_id: 'a', resolvers: ['1.1.1.1 } accept', '::1%lo'] }).includes('dport'));
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
  const rules = hostRules({ data_folder_id: one, resolvers: [], egress_proxy_uid: egressProxyUid(one) });
  assert.ok(rules.includes(`meta skuid ${egressProxyUid(one)} jump guest`));
  assert.ok(!rules.includes(String(egressProxyUid(other))));
});
