/**
 * The ports of a guest with a TAP device: every one is open to this machine, at the guest's own address. While the guest is
 * drained, the kernel refuses new connections to them, so a caller that knows the address cannot use it.
 */
import { connect, type Socket } from 'node:net';
import { pause } from '../../shared/backoff.ts';
import type { GuestNetwork } from '../network/guest-network.ts';
import { areHeld, holdConnections, releaseConnections } from '../network/hold-connections.ts';
import { runTool } from '../network/run-tool.ts';
import { ACCEPT_MS, DRAIN_MS, DrainedError, type GuestPorts, NotListeningError } from './guest-ports.ts';

const LOOK_MS = 50;

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
