/**
 * The guests' network in the real kernel, without machines: tests send the frames of a guest's TAP device. What they must not reach is
 * this host, other guests, and a server in a network namespace that guests may reach under their own address only.
 */
import assert from 'node:assert/strict';
import { createServer, type Server } from 'node:net';
import { networkInterfaces } from 'node:os';
import { after, before, describe, test } from 'node:test';
import { GATEWAY, GUEST, GUEST_RESOLVER, guestAddress, HOST_END } from '../../src/host/network/addresses.ts';
import {
  type GuestNetwork,
  inNetwork,
  mendForwarding,
  mendGuestNetwork,
  openGuestNetwork,
  removeGuestNetwork,
} from '../../src/host/network/guest-network.ts';
import {
  applyHostRules,
  CONNECTIONS_MAX,
  dataFolderId,
  removeHostRules,
} from '../../src/host/network/packet-rules.ts';
import { runTool } from '../../src/host/network/run-tool.ts';
import {
  arp,
  BROADCAST,
  checksumIsRight,
  ETHERTYPE,
  ethernet,
  ip,
  ipv4,
  PROTOCOL,
  ping,
  syn,
  udp,
} from '../support/frames.ts';
import { NO_TAP } from '../support/no-tap.ts';
import { OUTSIDE, Outside } from '../support/outside.ts';
import { TapGuest } from '../support/tap-guest.ts';
import { until } from '../support/waiting.ts';

const data_dir = `/nowhere/network-${process.pid}`;
/** Outside of the range that test installations use. */
const PORTS = [60_000 + (process.pid % 2_000) * 2, 60_001 + (process.pid % 2_000) * 2] as const;
const RST = 0x04;
const SYN_ACK = 0x12;

describe('the guests’ network', { skip: NO_TAP, timeout: 300_000 }, () => {
  let network: GuestNetwork;
  let outside: Outside;
  let guest: TapGuest;
  let neighbour: TapGuest;
  /** On all addresses of the host. */
  let server: Server;
  let host_port: number;
  let next_port = 10_000;

  before(async () => {
    const opened = await openGuestNetwork(data_dir, 'auto');
    assert.ok(opened.network, opened.problem ?? '');
    network = opened.network;
    const { chains, problem } = await mendForwarding(network);
    assert.equal(problem, null);
    assert.deepEqual(await applyHostRules({ data_folder_id: dataFolderId(data_dir), chains }), {
      closed: true,
    });
    outside = await Outside.open();
    server = createServer((socket) => socket.on('error', () => undefined).end('host\n'));
    await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve));
    host_port = (server.address() as { port: number }).port;
    guest = await TapGuest.start(network, PORTS[0]);
    neighbour = await TapGuest.start(network, PORTS[1]);
  });
  after(async () => {
    for (const each of [guest, neighbour]) each?.end();
    server?.close();
    await outside?.[Symbol.asyncDispose]();
    await removeHostRules(dataFolderId(data_dir));
    await removeGuestNetwork(data_dir);
  });

  /** The flags of the answer to a SYN. */
  async function knock(to: string, port: number): Promise<number> {
    const own = next_port++;
    guest.send({ to, protocol: PROTOCOL.tcp, payload: syn(GUEST, to, [own, port]) });
    const answer = await until(`${to}:${port} answers`, () =>
      guest
        .packets()
        .find(
          ({ from, protocol, payload }) =>
            from === to && protocol === PROTOCOL.tcp && payload.readUInt16BE(2) === own,
        ),
    );
    return answer.payload[13] ?? 0;
  }

  /** The sources of all that arrived at the outside since the last call. */
  async function seenOutside(): Promise<string[]> {
    await guest.settled();
    const table =
      'table inet seen { set sources { type ipv4_addr; flags dynamic; size 1000; }; chain in { type filter hook prerouting priority -300; add @sources { ip saddr }; }; }';
    const seen = await outside
      .inside('nft', '-j', 'list', 'set', 'inet', 'seen', 'sources')
      .catch(() => null);
    await outside.inside('nft', `table inet seen {}; delete table inet seen; ${table}`);
    if (seen === null) return [];
    const { nftables } = JSON.parse(seen) as { nftables: { set?: { elem?: string[] } }[] };
    return nftables.flatMap(({ set }) => set?.elem ?? []);
  }

  test('guests with one and the same address both reach the outside, under the host’s', async () => {
    await seenOutside();
    for (const each of [guest, neighbour]) {
      const [own, port] = [20_000, 7_003];
      each.send({ to: OUTSIDE, protocol: PROTOCOL.tcp, payload: syn(GUEST, OUTSIDE, [own, port]) });
      await until('the outside answers', () =>
        each
          .packets()
          .some(({ from, to, payload }) => from === OUTSIDE && to === GUEST && payload[13] === SYN_ACK),
      );
    }
    const sources = await seenOutside();
    assert.equal(sources.length, 1);
    assert.ok(!sources[0]?.startsWith('198.18.') && sources[0] !== GUEST, sources[0]);
  });

  test('this host, its networks, private and metadata addresses and other guests refuse a guest’s connections at once', async () => {
    const own = Object.values(networkInterfaces())
      .flatMap((each) => each ?? [])
      .filter(({ family }) => family === 'IPv4')
      .map(({ address }) => address)
      .filter((address) => !address.startsWith('127.'));
    const closed = [
      ...[GATEWAY, HOST_END, '198.19.0.2', guestAddress(PORTS[1]), guestAddress(PORTS[0]), ...own],
      ...['10.1.2.3', '172.17.0.1', '192.168.0.1', '100.64.0.1', '169.254.169.254', '169.254.170.2'],
      ...[
        '168.63.129.16',
        '100.100.100.200',
        '192.0.0.192',
        '198.18.0.9',
        '224.0.0.1',
        '255.255.255.255',
        '0.0.0.1',
      ],
    ];
    const reachable: string[] = [];
    for (const address of closed.filter((each) => !/^(224|255|0)\./.test(each)))
      if ((await knock(address, host_port)) !== (RST | 0x10)) reachable.push(address);
    assert.deepEqual(reachable, []);
    assert.equal(await knock(OUTSIDE, 7_003), SYN_ACK, 'else this proves nothing');
  });

  test('nothing that a guest sends as somebody else, or not as IPv4, leaves its TAP device', async () => {
    const to = { protocol: PROTOCOL.icmp, to: OUTSIDE, payload: ping(9) };
    const as_ip = (from: string) => guest.send({ ...to, from });
    const proper = ipv4({ from: GUEST, ...to });
    await seenOutside();
    for (const from of [
      '198.51.100.7',
      '10.0.2.16',
      GATEWAY,
      guestAddress(PORTS[1]),
      HOST_END,
      '127.0.0.1',
      '0.0.0.0',
    ])
      as_ip(from);
    guest.sendTo(guest.gateway_mac, ETHERTYPE.ipv4, proper, neighbour.mac);
    const tagged = Buffer.concat([Buffer.from([0, 5, 8, 0]), proper]);
    guest.sendTo(guest.gateway_mac, ETHERTYPE.vlan, tagged);
    guest.sendTo(guest.gateway_mac, ETHERTYPE.pppoe, proper);
    guest.sendTo(guest.gateway_mac, ETHERTYPE.ipv6, proper);
    for (const length of [14, 20, 33])
      guest.sendRaw(
        ethernet({ from_mac: guest.mac, to_mac: guest.gateway_mac }, ETHERTYPE.ipv4, proper).subarray(
          0,
          length,
        ),
      );
    assert.deepEqual(await seenOutside(), []);
    guest.send(to);
    assert.equal((await seenOutside()).length, 1, 'else this proves nothing');
  });

  test('a guest that claims other addresses by ARP is not believed, and gets no answer for any but its gateway and resolver', async () => {
    const claim = (operation: 1 | 2, address: string, mac_address: string) =>
      arp({
        operation,
        sender: { mac: mac_address, ip: address },
        target: { mac: guest.gateway_mac, ip: GATEWAY },
      });
    const before = guest.frames.length;
    for (const address of [guestAddress(PORTS[1]), GATEWAY, HOST_END, '10.0.2.16'])
      for (const operation of [1, 2] as const)
        guest.sendTo(BROADCAST, ETHERTYPE.arp, claim(operation, address, guest.mac));
    guest.sendTo(BROADCAST, ETHERTYPE.arp, claim(1, GUEST, neighbour.mac));
    for (const address of [guestAddress(PORTS[1]), HOST_END, '198.19.0.2', '10.0.2.16', OUTSIDE])
      guest.sendTo(
        BROADCAST,
        ETHERTYPE.arp,
        arp({ operation: 1, sender: { mac: guest.mac, ip: GUEST }, target: { mac: BROADCAST, ip: address } }),
      );
    await guest.settled();
    const answers = guest.frames
      .slice(before)
      .filter((frame) => frame.readUInt16BE(12) === ETHERTYPE.arp && frame[21] === 2);
    assert.deepEqual(answers, []);
    const known = JSON.parse(await inNetwork(network, ['ip', '-json', 'neighbour'])) as {
      dst: string;
      lladdr?: string;
      dev: string;
    }[];
    const ours = known.filter(({ lladdr, dev }) => lladdr === guest.mac && dev !== `vm${PORTS[0]}`);
    assert.deepEqual(ours, []);
    assert.equal(known.find(({ dst }) => dst === guestAddress(PORTS[1]))?.lladdr, neighbour.mac);
  });

  test('IPv6, router advertisements and DHCP answers of a guest reach no other guest and change nothing', async () => {
    const routes = () =>
      inNetwork(network, ['sh', '-c', 'ip -6 route; ip -6 address; ip -4 address; ip route']);
    const [before, heard] = [await routes(), neighbour.frames.length];
    const all_nodes = '33:33:00:00:00:01';
    const advertisement = Buffer.from(
      '6000000000183afffe800000000000000000000000000001ff02000000000000000000000000000186000000400007080000000000000000010152540000eaaa',
      'hex',
    );
    guest.sendTo(all_nodes, ETHERTYPE.ipv6, advertisement);
    const offer = udp(GUEST, '255.255.255.255', [67, 68], Buffer.alloc(300, 2));
    guest.sendTo(
      BROADCAST,
      ETHERTYPE.ipv4,
      ipv4({ from: GUEST, to: '255.255.255.255', protocol: PROTOCOL.udp, payload: offer }),
    );
    guest.sendTo(
      neighbour.mac,
      ETHERTYPE.ipv4,
      ipv4({ from: GUEST, to: GUEST, protocol: PROTOCOL.icmp, payload: ping(3) }),
    );
    await guest.settled();
    await neighbour.settled();
    assert.equal(await routes(), before);
    const strange = neighbour
      .packets()
      .slice(0)
      .filter(({ from }) => from === GUEST || from.startsWith('198.18.'));
    assert.deepEqual(strange, []);
    assert.ok(neighbour.frames.length - heard <= 3, 'an answered ping, and ARP');
  });

  test('tunnels and fragments to closed addresses are dropped or refused', async () => {
    await seenOutside();
    const inner = ipv4({ from: GUEST, to: '169.254.169.254', protocol: PROTOCOL.icmp, payload: ping(4) });
    for (const protocol of [PROTOCOL.ipip, PROTOCOL.gre, PROTOCOL.ipv6])
      for (const to of ['169.254.169.254', HOST_END, guestAddress(PORTS[1])])
        guest.send({ to, protocol, payload: inner });
    const segment = syn(GUEST, HOST_END, [31_000, host_port]);
    guest.send({ to: HOST_END, protocol: PROTOCOL.tcp, payload: segment.subarray(0, 8), fragment: 0x2000 });
    guest.send({ to: HOST_END, protocol: PROTOCOL.tcp, payload: segment.subarray(8), fragment: 1 });
    await guest.settled();
    assert.ok(!guest.packets().some(({ from, payload }) => from === HOST_END && payload[13] === SYN_ACK));
    assert.deepEqual(await seenOutside(), []);
  });

  test('an ICMP error reaches the guest as one about its own packet', async () => {
    const before = guest.frames.length;
    guest.send({
      to: OUTSIDE,
      protocol: PROTOCOL.udp,
      payload: udp(GUEST, OUTSIDE, [32_000, 9], Buffer.from('?')),
    });
    const error = await until('the port is unreachable', () =>
      guest
        .packets()
        .find(
          ({ from, protocol, payload }) => from === OUTSIDE && protocol === PROTOCOL.icmp && payload[0] === 3,
        ),
    );
    assert.ok(checksumIsRight(error.payload));
    assert.deepEqual([...error.payload.subarray(20, 24)], [...ip(GUEST)]);
    assert.ok(guest.frames.length > before);
  });

  test('only this host connects to a guest, which sees its gateway', async () => {
    const address = guestAddress(PORTS[0]);
    const from_host = runTool('bash', ['-c', `timeout 2 bash -c 'exec 3<>/dev/tcp/${address}/22'`]).catch(
      () => undefined,
    );
    const found = await until('the guest is knocked at', () =>
      guest
        .packets()
        .find(({ protocol, payload }) => protocol === PROTOCOL.tcp && payload.readUInt16BE(2) === 22),
    );
    assert.deepEqual([found.from, found.to], [GATEWAY, GUEST]);
    const reset = syn(GUEST, GATEWAY, [22, found.payload.readUInt16BE(0)]);
    guest.send({ to: GATEWAY, protocol: PROTOCOL.tcp, payload: reset });
    // The outside routes to this host, and so might a neighbour of it.
    const before = guest.packets().length;
    await outside.inside('bash', '-c', `timeout 1 bash -c 'exec 3<>/dev/tcp/${address}/23'; true`);
    await guest.settled();
    assert.ok(
      !guest
        .packets()
        .slice(before)
        .some(({ payload, protocol }) => protocol === PROTOCOL.tcp && payload.readUInt16BE(2) === 23),
    );
    await from_host;
  });

  test('the host’s resolver answers at 10.0.2.3', async (context) => {
    const question = Buffer.concat([
      Buffer.from([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
      Buffer.from('\x09localhost\0\0\x01\0\x01', 'latin1'),
    ]);
    guest.send({
      to: GUEST_RESOLVER,
      protocol: PROTOCOL.udp,
      payload: udp(GUEST, GUEST_RESOLVER, [33_000, 53], question),
    });
    const answer = await until(
      'an answer',
      () =>
        guest
          .packets()
          .find(({ from, payload }) => from === GUEST_RESOLVER && payload.readUInt16BE(2) === 33_000),
      { timeout_ms: 10_000 },
    ).catch(() => null);
    if (answer === null) return context.skip('this host has no resolver that answers');
    assert.equal(answer.payload.readUInt16BE(8), 7);
  });

  test('a guest has a bounded number of connections, and takes none from another', async () => {
    const datagram = (port: number) => udp(GUEST, OUTSIDE, [port, 9], Buffer.from('?'));
    for (let each = 0; each <= CONNECTIONS_MAX; each++) {
      guest.send({ to: OUTSIDE, protocol: PROTOCOL.udp, payload: datagram(40_000 + each) });
      if (each % 1_000 === 0) await guest.settled();
    }
    await guest.settled();
    assert.equal(await knock(OUTSIDE, 7_003), RST | 0x10);
    const before = neighbour.packets().length;
    neighbour.send({ to: OUTSIDE, protocol: PROTOCOL.tcp, payload: syn(GUEST, OUTSIDE, [20_001, 7_003]) });
    await until('the outside answers the neighbour', () =>
      neighbour
        .packets()
        .slice(before)
        .some(({ from, payload }) => from === OUTSIDE && payload[13] === SYN_ACK),
    );
    await inNetwork(network, ['nft', 'flush', 'set', 'inet', 'guests', 'connections']);
  });

  test('a firewall that drops what it does not know lets guests through from the next look on', async (context) => {
    const table = `inet berth_test_${process.pid}`;
    // Of this guest only: others run on this machine.
    const others = `ip saddr != ${guestAddress(PORTS[0])} accept`;
    const chain = `chain forward { type filter hook forward priority 10; policy drop; ${others}; }`;
    await runTool('nft', ['-f', '-'], `table ${table} { ${chain}; }\n`);
    context.after(() => runTool('nft', ['delete', 'table', ...table.split(' ')]));
    await seenOutside();
    guest.send({ to: OUTSIDE, protocol: PROTOCOL.icmp, payload: ping(21) });
    assert.deepEqual(await seenOutside(), [], 'else this proves nothing');
    for (let look = 0; look < 2; look++) assert.equal((await mendForwarding(network)).problem, null);
    guest.send({ to: OUTSIDE, protocol: PROTOCOL.icmp, payload: ping(22) });
    assert.equal((await seenOutside()).length, 1);
    const rules = await runTool('nft', ['list', 'table', ...table.split(' ')]);
    assert.equal(rules.split(`"${network.link}"`).length - 1, 2, 'one rule for each direction');
  });

  test('without TAP devices VMs have QEMU’s user network, and the reason is reported', async () => {
    const { network: none, problem } = await openGuestNetwork(`${data_dir}-user`, 'user');
    assert.equal(none, null);
    assert.match(problem, /^VMs have QEMU's user network, .*: BERTH_GUEST_NETWORK is user$/);
  });

  test('a VM that runs keeps its network, also where the next agent cannot open it', async (context) => {
    const kept = await openGuestNetwork(data_dir, 'user');
    assert.match(kept.problem ?? '', /keep their TAP devices .*: BERTH_GUEST_NETWORK is user$/);
    assert.deepEqual(kept.network, network);
    // The name of the device on trial is taken.
    await inNetwork(network, ['ip', 'link', 'add', 'vm1', 'type', 'veth', 'peer', 'name', 'taken']);
    context.after(() => inNetwork(network, ['ip', 'link', 'delete', 'vm1']).catch(() => ''));
    const failed = await openGuestNetwork(data_dir, 'auto');
    assert.match(failed.problem ?? '', /keep their TAP devices .*vm1/);
    assert.ok(failed.network);
    const { chains, problem } = await mendForwarding(failed.network);
    assert.equal(problem, null);
    assert.ok(chains.some((line) => line.includes('masquerade')));
  });

  test('a device vanishes with its holder, its table with the next look, and the rules come back when they are gone', async () => {
    neighbour.end();
    const names = () => inNetwork(network, ['ip', '-br', 'link']);
    await until('the device is gone', async () => !(await names()).includes(`vm${PORTS[1]}`));
    await inNetwork(network, ['nft', 'delete', 'table', 'inet', 'guests']);
    await mendGuestNetwork(network);
    const tables = await inNetwork(network, ['nft', 'list', 'tables']);
    assert.ok(tables.includes('table inet guests') && tables.includes(`netdev vm${PORTS[0]}`));
    assert.ok(!tables.includes(`vm${PORTS[1]}`));
    await guest.settled();
  });
});
