/** A guest without a VM: a test sends and receives the Ethernet frames of its TAP device. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { GATEWAY, GATEWAY_MAC, GUEST } from '../../src/host/network/addresses.ts';
import { type GuestNetwork, onTap, routeToGuest } from '../../src/host/network/guest-network.ts';
import {
  arp,
  BROADCAST,
  ETHERTYPE,
  ethernet,
  ipv4,
  type Packet,
  PROTOCOL,
  ping,
  readPacket,
} from './frames.ts';
import { until } from './waiting.ts';

const HOLDER = join(import.meta.dirname, 'tap-holder.ts');
const NOBODY = '00:00:00:00:00:00';

export class TapGuest {
  readonly slot: number;
  readonly mac: string;
  /** All that it has received. */
  readonly frames: Buffer[] = [];
  readonly process: ChildProcess;
  readonly gateway_mac = GATEWAY_MAC;
  #pings = 1;

  private constructor(network: GuestNetwork, slot: number) {
    this.slot = slot;
    this.mac = `52:54:00:00:${(slot >> 8).toString(16).padStart(2, '0')}:${(slot & 255).toString(16).padStart(2, '0')}`;
    const [file = '', ...args] = onTap(network, this, [process.execPath, HOLDER]);
    this.process = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    assert.ok(this.process.stdout);
    createInterface({ input: this.process.stdout }).on('line', (line) =>
      this.frames.push(Buffer.from(line, 'hex')),
    );
  }

  /** Resolves once it knows its gateway's MAC address. */
  static async start(network: GuestNetwork, slot: number): Promise<TapGuest> {
    await routeToGuest(network, slot);
    const guest = new TapGuest(network, slot);
    const who_has = arp({
      ...{ operation: 1, sender: { mac: guest.mac, ip: GUEST }, target: { mac: NOBODY, ip: GATEWAY } },
    });
    const reply = await until('its gateway answers', () => {
      guest.sendTo(BROADCAST, ETHERTYPE.arp, who_has);
      return guest.frames.find((frame) => frame.readUInt16BE(12) === ETHERTYPE.arp && frame[21] === 2);
    });
    // Which a resumed guest expects.
    assert.equal(reply.subarray(22, 28).toString('hex'), GATEWAY_MAC.replaceAll(':', ''));
    return guest;
  }

  /** Sends a frame as it is. */
  sendRaw(frame: Buffer): void {
    this.process.stdin?.write(`${frame.toString('hex')}\n`);
  }

  sendTo(to_mac: string, type: number, payload: Buffer, from_mac = this.mac): void {
    this.sendRaw(ethernet({ from_mac, to_mac }, type, payload));
  }

  send(packet: Omit<Packet, 'from'> & { readonly from?: string }): void {
    this.sendTo(this.gateway_mac, ETHERTYPE.ipv4, ipv4({ from: GUEST, ...packet }));
  }

  packets() {
    return this.frames.flatMap((frame) => readPacket(frame) ?? []);
  }

  /** Resolves once everything that was sent before has been handled. */
  async settled(): Promise<void> {
    const id = this.#pings++;
    this.send({ to: GATEWAY, protocol: PROTOCOL.icmp, payload: ping(id) });
    await until('its gateway answers a ping', () =>
      this.packets().some(
        ({ from, protocol, payload }) =>
          from === GATEWAY &&
          protocol === PROTOCOL.icmp &&
          payload[0] === 0 &&
          payload.readUInt16BE(4) === id,
      ),
    );
  }

  end(): void {
    this.process.kill('SIGKILL');
  }
}
