/**
 * Opens connections from this host to the TCP ports of a guest, except that of sshd, which has a way of its own: to the
 * guest's address if it has a TAP device (`TapPorts`), else through ports of the loopback that QEMU forwards
 * (`UserNetworkPorts`). Before a guest stops, restarts or suspends, it is drained: it gets no new connections, and open
 * ones have two seconds to end.
 */
import { randomInt } from 'node:crypto';
import { connect, type Socket } from 'node:net';
import { pause } from '../../shared/retry.ts';
import type { GuestNetwork } from '../network/guest-network.ts';
import { areHeld, holdConnections, releaseConnections } from '../network/hold-connections.ts';
import { runTool } from '../network/run-tool.ts';
import { DEVICES } from '../qemu/qemu-command.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import type { PortForward, VmRecord } from './record.ts';

/** A drained guest gets no connections until it may have them again. */
export interface GuestPorts {
  /** The `host:port` of this machine that leads to the guest's port. @throws NotListeningError, DrainedError */
  open(port: number): Promise<string>;
  /** A connection that the guest has accepted. The caller must end it. @throws as {@link open} */
  connect(port: number): Promise<Socket>;
  /** Ends the ways in, then waits for the connections through them, for two seconds at most. */
  drain(signal: AbortSignal): Promise<void>;
  /** The guest may have connections again. */
  resume(): Promise<void>;
}

/** No program in the guest accepts connections at the port. */
export class NotListeningError extends Error {
  override name = 'NotListeningError';
}
/** The VM is about to stop, restart or suspend. */
export class DrainedError extends Error {
  override name = 'DrainedError';
}
/** How long requests under way may take before a stop, restart or suspend. */
const DRAIN_MS = 2_000;
/** A guest that accepts no connection within this time does not listen. */
const ACCEPT_MS = 3_000;

const LOOK_MS = 50;

/**
 * The ports of a guest with a TAP device: every one is open to this machine, at the guest's own address. While the guest is
 * drained, the kernel refuses new connections to them, so a caller that knows the address cannot use it.
 */
export class TapPorts implements GuestPorts {
  readonly #address: string;
  readonly #network: GuestNetwork | null;
  #drained = false;

  constructor(address: string, network: GuestNetwork | null) {
    this.#address = address;
    this.#network = network;
  }

  async open(port: number): Promise<string> {
    (await this.connect(port)).destroy();
    return `${this.#address}:${port}`;
  }

  connect(port: number): Promise<Socket> {
    if (this.#drained) return Promise.reject(new DrainedError('the VM stops or restarts'));
    const { promise, resolve, reject } = Promise.withResolvers<Socket>();
    const socket = connect({ host: this.#address, port, noDelay: true, allowHalfOpen: true });
    const timer = setTimeout(() => socket.destroy(), ACCEPT_MS);
    socket.on('error', () => socket.destroy());
    socket.once('connect', () => {
      clearTimeout(timer);
      resolve(socket);
    });
    socket.once('close', () => {
      clearTimeout(timer);
      void this.#refusal().then(reject);
    });
    return promise;
  }

  /** Why a connection was not accepted. An agent before this one may have drained the guest. */
  async #refusal(): Promise<Error> {
    if (this.#drained || (this.#network && (await areHeld(this.#network, this.#address))))
      return new DrainedError('the VM stops or restarts');
    return new NotListeningError('nothing listens at the port in the guest');
  }

  async drain(signal: AbortSignal): Promise<void> {
    this.#drained = true;
    // A stop must not fail for it: at worst a late request is cut.
    if (this.#network) await holdConnections(this.#network, this.#address).catch(() => undefined);
    const within = AbortSignal.any([signal, AbortSignal.timeout(DRAIN_MS)]);
    while (await this.#hasConnections()) if (!(await pause(LOOK_MS, within))) return;
  }

  async resume(): Promise<void> {
    this.#drained = false;
    if (this.#network) await releaseConnections(this.#network, this.#address);
  }

  /** Of this machine, but those to sshd. */
  async #hasConnections(): Promise<boolean> {
    const states = ['state', 'established', 'state', 'syn-sent', 'state', 'close-wait'];
    const filter = ['dst', this.#address, 'and', 'dport', '!=', ':22'];
    return (await runTool('ss', ['-Htn', ...states, ...filter]).catch(() => '')).trim() !== '';
  }
}

/** GUEST_PORTS of the egress rules, which keep other users of this machine away. */
const FIRST_NETWORK = 64;
const NETWORKS = 64;
const FIRST_PORT = 1_024;
const LAST_PORT = 32_767;
const OPEN_TRIES = 4;
/** How many ports of one guest are open at most. */
const FORWARDS_MAX = 64;
const FORWARD_LOOK_MS = 10;
const LOOK_SLOWLY_MS = 50;

/** A request may be under way. Once the near side has sent its end, it waits for nothing more. */
const OPEN_STATES: readonly string[] = ['SYN_SENT', 'SYN_RECEIVED', 'ESTABLISHED', 'CLOSE_WAIT'];

interface PortsOfMachine {
  readonly qmp: Pick<QmpClient, 'execute'>;
  readonly record: { readonly port_forwards?: readonly PortForward[] };
  update(change: { port_forwards: readonly PortForward[] }): Promise<void>;
}

/**
 * The ways into a guest's TCP ports through QEMU's user network: each is a port of this machine's loopback that QEMU forwards.
 *
 * Invariants: the record names every forward that QEMU may have; an address is random among 2^37, so a stale one leads to
 * nothing rather than to another guest; a drained guest gets no forward until it may have connections again.
 */
export class UserNetworkPorts implements GuestPorts {
  readonly #machine: PortsOfMachine;
  /** Serialises changes of the forwards. */
  #turn: Promise<unknown> = Promise.resolve();
  #drained = false;

  constructor(machine: PortsOfMachine) {
    this.#machine = machine;
  }

  async open(port: number): Promise<string> {
    const { address, socket } = await this.#dial(port);
    socket.destroy();
    return address;
  }

  async connect(port: number): Promise<Socket> {
    return (await this.#dial(port)).socket;
  }

  async drain(signal: AbortSignal): Promise<void> {
    this.#drained = true;
    await this.#inTurn(async () => {
      const forwards = this.#forwards;
      if (forwards.length === 0) return;
      for (const { address } of forwards) await this.#hmp(`hostfwd_remove ${DEVICES.net} tcp:${address}`);
      const within = AbortSignal.any([signal, AbortSignal.timeout(DRAIN_MS)]);
      const addresses = new Set(forwards.map(({ address }) => address));
      while ((await this.#connections()).some((each) => addresses.has(each.address))) {
        if (!(await pause(FORWARD_LOOK_MS, within))) break;
      }
      await this.#machine.update({ port_forwards: [] });
    });
  }

  async resume(): Promise<void> {
    this.#drained = false;
  }

  get #forwards(): readonly PortForward[] {
    return this.#machine.record.port_forwards ?? [];
  }

  async #dial(port: number): Promise<{ address: string; socket: Socket }> {
    const address = await this.#inTurn(() => this.#forward(port));
    const socket = connect({ ...hostAndPort(address), noDelay: true, allowHalfOpen: true });
    try {
      await this.#accepted(address, socket);
      return { address, socket };
    } catch (error) {
      socket.destroy();
      throw error;
    }
  }

  async #forward(port: number): Promise<string> {
    if (this.#drained) throw new DrainedError('the VM stops or restarts');
    const known = this.#forwards.find((each) => each.port === port);
    const listening = await this.#listening();
    if (known && listening.has(known.address)) return known.address;
    const others = this.#forwards.filter((each) => each !== known);
    if (others.length >= FORWARDS_MAX) throw new Error(`a guest has at most ${FORWARDS_MAX} open ports`);
    for (let tries = 1; ; tries++) {
      const network = `127.${FIRST_NETWORK + randomInt(NETWORKS)}.${randomInt(256)}.${randomInt(1, 255)}`;
      const address = `${network}:${randomInt(FIRST_PORT, LAST_PORT + 1)}`;
      await this.#machine.update({ port_forwards: [...others, { port, address }] });
      // Without an answer it has worked.
      const problem = await this.#hmp(`hostfwd_add ${DEVICES.net} tcp:${address}-:${port}`);
      if (problem === '') return address;
      if (tries === OPEN_TRIES) throw new Error(`QEMU forwards no port: ${problem}`);
    }
  }

  /**
   * QEMU accepts a connection before the guest does. It passes nothing on until the guest has accepted it, and closes it if the
   * guest refuses.
   */
  async #accepted(address: string, socket: Socket): Promise<void> {
    let ended = false;
    const end = () => {
      ended = true;
    };
    // Reads nothing, but notices the end.
    const look = () => void socket.read(0);
    socket.on('error', () => socket.destroy());
    socket.once('close', end).once('end', end).on('readable', look);
    const deadline = performance.now() + ACCEPT_MS;
    for (let looks = 0; performance.now() < deadline; looks++) {
      if (socket.readableLength > 0) break;
      if (ended) throw new NotListeningError('nothing listens at the port in the guest');
      const mine = (await this.#connections()).filter((each) => each.address === address);
      if (mine.some(({ state }) => state === 'ESTABLISHED')) break;
      await pause(looks < 10 ? FORWARD_LOOK_MS : LOOK_SLOWLY_MS);
    }
    if (ended || performance.now() >= deadline)
      throw new NotListeningError('nothing listens at the port in the guest');
    socket.off('end', end).off('close', end).off('readable', look);
  }

  async #listening(): Promise<ReadonlySet<string>> {
    const all = await this.#sockets();
    return new Set(all.filter(({ state }) => state === 'HOST_FORWARD').map(({ address }) => address));
  }

  async #connections(): Promise<readonly GuestSocket[]> {
    return (await this.#sockets()).filter(({ state }) => OPEN_STATES.includes(state));
  }

  async #sockets(): Promise<readonly GuestSocket[]> {
    return parseSockets(await this.#hmp('info usernet'));
  }

  #hmp(line: string): Promise<string> {
    return this.#machine.qmp
      .execute('human-monitor-command', { 'command-line': line })
      .then((answer) => answer.trim());
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => undefined);
    return turn;
  }
}

export interface GuestSocket {
  /** `HOST_FORWARD`, or a state of TCP. */
  readonly state: string;
  /** On this machine. */
  readonly address: string;
}

/** The TCP sockets of `info usernet`: `TCP[ESTABLISHED] 33 127.77.1.2 4000 10.0.2.15 8080 0 0`. */
export function parseSockets(text: string): GuestSocket[] {
  return [...text.matchAll(/^\s*TCP\[([A-Z_0-9]+)\]\s+-?\d+\s+(\S+)\s+(\d+)\s/gm)].map(
    ([, state = '', host = '', port = '']) => ({ state, address: `${host}:${port}` }),
  );
}

function hostAndPort(address: string): { host: string; port: number } {
  const at = address.lastIndexOf(':');
  return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
}

interface MachineWithPorts {
  readonly qmp: Pick<QmpClient, 'execute'>;
  readonly record: VmRecord;
  update(change: Partial<VmRecord>): Promise<void>;
}

/** The way into a machine's ports: by its TAP device, or through QEMU's user network. */
export function guestPortsOf(machine: MachineWithPorts, guest_network: GuestNetwork | null): GuestPorts {
  const { network } = machine.record;
  return network.kind === 'tap'
    ? new TapPorts(network.address, guest_network)
    : new UserNetworkPorts(machine);
}
