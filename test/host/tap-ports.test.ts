/**
 * The ports of a guest with a TAP device, in the real kernel and without a machine: the test answers its connections frame by frame.
 */
import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { GATEWAY, GUEST, guestAddress } from '../../src/host/network/addresses.ts';
import {
  type GuestNetwork,
  mendForwarding,
  openGuestNetwork,
  removeGuestNetwork,
} from '../../src/host/network/guest-network.ts';
import { applyHostRules, dataFolderId, removeHostRules } from '../../src/host/network/packet-rules.ts';
import { DrainedError, NotListeningError, TapPorts } from '../../src/host/vm/guest-ports.ts';
import { PROTOCOL, tcp } from '../support/frames.ts';
import { NO_TAP } from '../support/no-tap.ts';
import { TapGuest } from '../support/tap-guest.ts';
import { until } from '../support/waiting.ts';

const data_dir = `/nowhere/tap-ports-${process.pid}`;
/** Outside of the range that test installations use. */
const SSH_PORT = 64_000 + (process.pid % 1_000);
const [FIN, SYN, RST, ACK] = [0x01, 0x02, 0x04, 0x10];
const LISTENING: readonly number[] = [22, 8080];

describe('the ports of a guest with a TAP device', { skip: NO_TAP, timeout: 120_000 }, () => {
  const address = guestAddress(SSH_PORT);
  const never = new AbortController().signal;
  let network: GuestNetwork;
  let guest: TapGuest;
  let answering: NodeJS.Timeout;
  let answered = 0;
  /** The destination ports of all connections that reached the guest. */
  const reached: number[] = [];

  const applyRules = async () => {
    const { chains } = await mendForwarding(network);
    const applied = await applyHostRules({ data_folder_id: dataFolderId(data_dir), chains });
    assert.deepEqual(applied, { closed: true });
  };

  /** As the guest's kernel would: accepts at the ports of LISTENING, and ends a connection when its peer does. */
  function answerNew(): void {
    const packets = guest.packets();
    for (const { protocol, payload } of packets.slice(answered)) {
      if (protocol !== PROTOCOL.tcp) continue;
      const [from, to, flags] = [payload.readUInt16BE(0), payload.readUInt16BE(2), payload[13] ?? 0];
      const answer = (sequence: number, answer_flags: number) =>
        guest.send({
          ...{ to: GATEWAY, protocol: PROTOCOL.tcp },
          payload: tcp(GUEST, GATEWAY, {
            ...{ ports: [to, from], sequence, flags: answer_flags },
            acknowledged: payload.readUInt32BE(4) + 1,
          }),
        });
      if (flags & SYN) {
        reached.push(to);
        answer(1, LISTENING.includes(to) ? SYN | ACK : RST | ACK);
      } else if (flags & FIN) answer(2, FIN | ACK);
    }
    answered = packets.length;
  }

  before(async () => {
    const opened = await openGuestNetwork(data_dir, 'auto');
    assert.ok(opened.network, opened.problem ?? '');
    network = opened.network;
    await applyRules();
    guest = await TapGuest.start(network, SSH_PORT);
    answering = setInterval(answerNew, 5);
  });
  after(async () => {
    clearInterval(answering);
    guest?.end();
    await removeHostRules(dataFolderId(data_dir));
    await removeGuestNetwork(data_dir);
  });

  /** By an address that a program of this machine knows, past the agent. */
  async function dials(port: number): Promise<boolean> {
    const socket = connect(port, address);
    const { promise, resolve } = Promise.withResolvers<boolean>();
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
    const connected = await promise;
    socket.destroy();
    return connected;
  }

  test('a port where a program listens is open at the guest’s own address, any other refuses', async () => {
    const ports = new TapPorts(address, network);
    assert.equal(await ports.open(8080), `${address}:8080`);
    await assert.rejects(ports.open(8081), NotListeningError);
  });

  test('a drained guest gets no new connection but to sshd, whichever agent runs, and all again afterwards', async () => {
    const ports = new TapPorts(address, network);
    await ports.drain(never);
    reached.length = 0;
    await assert.rejects(ports.open(8080), DrainedError);
    assert.equal(await dials(8080), false);
    assert.equal(await dials(22), true);
    // An agent that starts in the middle of a stop applies the rules anew, and has not drained the guest itself.
    await applyRules();
    assert.equal(await dials(8080), false);
    const next = new TapPorts(address, network);
    await assert.rejects(next.open(8080), DrainedError);
    assert.deepEqual(reached, [22]);
    await next.resume();
    assert.equal(await next.open(8080), `${address}:8080`);
    await next.resume();
  });

  test('a drain waits for the connections under way, two seconds at most, and not for those to sshd', async () => {
    const ports = new TapPorts(address, network);
    const open: Socket = await ports.connect(8080);
    const ssh = connect(22, address);
    await until('sshd accepts', () => !ssh.connecting);
    let over = false;
    const draining_ms = performance.now();
    const drained = ports.drain(never).then(() => {
      over = true;
    });
    await until('new connections are refused', async () => !(await dials(8080)));
    // It gives up after two seconds, which a busy machine may need for a dial.
    if (performance.now() - draining_ms < 1_500) assert.equal(over, false);
    open.destroy();
    await drained;
    assert.equal(ssh.destroyed, false);
    await ports.resume();
    const kept = await ports.connect(8080);
    const began_ms = performance.now();
    await ports.drain(never);
    const took_ms = performance.now() - began_ms;
    assert.ok(took_ms >= 1_900 && took_ms < 10_000, `${took_ms} ms`);
    for (const each of [kept, ssh]) each.destroy();
    await ports.resume();
  });
});
