/**
 * Builds a guest, its host and an internet, each as a network namespace. The host's side is set up by the agent's own
 * code, and the guest's side as in a VM.
 *
 *   guest 10.0.2.15 ── vm1794, 198.18.7.2 ─ router ─ 198.51.100.2 internet
 *
 * The router is the network namespace of an installation, with its packet rules and egress proxy.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import {
  CertificateSource,
  type Certified,
  fingerprintOfAuthority,
} from '../../src/host/egress/certificate-source.ts';
import { EgressProxyChild } from '../../src/host/egress/egress-proxy-child.ts';
import { runPacketLog } from '../../src/host/egress/packet-log.ts';
import { PROXY_ROUTES, policyRules } from '../../src/host/egress/policy-rules.ts';
import { ResolvedAddresses } from '../../src/host/egress/resolved-addresses.ts';
import {
  DENIED_LOG_GROUP,
  GATEWAY,
  GATEWAY_MAC,
  guestAddress,
  PROXY_MARK,
  tapName,
} from '../../src/host/network/addresses.ts';
import { inNetwork } from '../../src/host/network/guest-network.ts';
import { LINK, namespaceRules, tapAddresses, tapRules } from '../../src/host/network/packet-rules.ts';
import type {
  CountedDenial,
  Denial,
  GuestPolicy,
  GuestSecret,
} from '../../src/protocol/egress-proxy-messages.ts';
import type { SecretsAuthority } from '../../src/protocol/host-types.ts';
import type { EgressPolicy } from '../../src/shared/egress-policy.ts';
import { createLog } from '../../src/shared/log.ts';
import {
  addressIn,
  type Contact,
  deleteNamespace,
  EgressOutside,
  endAll,
  FAR,
  inNamespace,
  ip,
  NAME_SERVER,
  NEAR,
} from './egress-outside.ts';
import { until } from './waiting.ts';

const TAP = { slot: 7 * 256 + 2, mac: '52:54:00:00:07:02' };
const NEIGHBOUR_TAP = { slot: 7 * 256 + 3, mac: '52:54:00:00:07:03' };
/** The guest's address outside of its device. */
export const GUEST = guestAddress(TAP.slot);
/** Another guest of the host. */
const NEIGHBOUR = guestAddress(NEIGHBOUR_TAP.slot);
const RELAY_PORT = 7_443;
const NAMES_PORT = 7_053;
const GATE_UID = 2_999_998;

const NO_SECRETS: Certified = { authority: undefined, secrets: [] };

export class EgressLab {
  readonly denials: CountedDenial[] = [];
  readonly #guest = `eg${process.pid}g`;
  readonly #neighbour = `eg${process.pid}n`;
  readonly #router = `eg${process.pid}r`;
  readonly #children: ChildProcess[] = [];
  readonly #ending = new AbortController();
  #outside: EgressOutside | null = null;
  readonly server_failures: string[] = [];
  readonly #resolved_addresses = new ResolvedAddresses((args, input) =>
    inNetwork({ path: this.path('router') }, ['nft', ...args], input),
  );
  /** `VM address`, since the proxy's start. */
  readonly #admitted = new Set<string>();
  readonly #certificates = new CertificateSource();
  readonly #roots_file: string;
  #proxy: EgressProxyChild | null = null;

  private constructor(roots_file: string) {
    this.#roots_file = roots_file;
  }

  /** `roots_file`: whom the proxy trusts beside the usual authorities. */
  static async open(roots_file = '/etc/ssl/certs/ca-certificates.crt'): Promise<EgressLab> {
    const lab = new EgressLab(roots_file);
    try {
      for (const name of lab.#namespaces) ip('netns', 'add', name);
      lab.#outside = await EgressOutside.open(lab.#router, LINK);
      lab.#build();
      lab.startProxy();
      void runPacketLog(
        {
          namespace: lab.path('router'),
          group: DENIED_LOG_GROUP,
          log: createLog('test', 'silent'),
          takeDenial: (denial) => lab.#take(denial),
        },
        lab.#ending.signal,
      );
      return lab;
    } catch (error) {
      await lab.close();
      throw error;
    }
  }

  /** What the internet saw. */
  get contacts(): Contact[] {
    return this.#outside?.contacts ?? [];
  }

  #take(denial: Denial): void {
    this.denials.push({ ...denial, at_ms: Date.now(), count: 1 });
  }

  get #namespaces(): string[] {
    return [this.#guest, this.#neighbour, this.#router];
  }

  path(which: 'guest' | 'neighbour' | 'router' | 'internet'): string {
    if (which === 'internet') return this.#outside?.path ?? '';
    const names = { guest: this.#guest, neighbour: this.#neighbour, router: this.#router };
    return `/run/netns/${names[which]}`;
  }

  #build(): void {
    const [guest, router] = [this.#guest, this.#router];
    for (const name of this.#namespaces) ip('-n', name, 'link', 'set', 'lo', 'up');
    const in_router = (command: string, args: readonly string[], input: string) =>
      inNamespace(this.path('router'), command, args, input);
    for (const [name, tap] of [
      [guest, TAP],
      [this.#neighbour, NEIGHBOUR_TAP],
    ] as const) {
      const peer = ['type', 'veth', 'peer', 'name', 'eth0', 'netns', name];
      ip('link', 'add', tapName(tap.slot), 'netns', router, ...peer);
      in_router('nft', ['-f', '-'], tapRules(tap));
      in_router('ip', ['-batch', '-'], tapAddresses(tap));
      ip('-n', name, 'link', 'set', 'eth0', 'address', tap.mac, 'up');
      ip('-n', name, 'address', 'add', '10.0.2.15/32', 'dev', 'eth0');
      ip('-n', name, 'route', 'add', 'default', 'via', GATEWAY, 'dev', 'eth0', 'onlink');
    }
    ip('-n', router, 'address', 'add', 'fd00:7::1/64', 'dev', tapName(TAP.slot), 'nodad');
    ip('-n', guest, 'address', 'add', 'fd00:7::2/64', 'dev', 'eth0', 'nodad');
    ip('-n', guest, 'neighbour', 'add', 'fd00:7::1', 'lladdr', GATEWAY_MAC, 'dev', 'eth0');
    ip('-n', guest, 'route', 'add', 'default', 'via', 'fd00:7::1');
    ip('-n', router, 'route', 'add', 'default', 'via', FAR);
    ip('-n', router, 'rule', 'add', 'fwmark', String(PROXY_MARK), 'lookup', String(PROXY_ROUTES));
    ip('-n', router, 'route', 'add', 'local', 'default', 'dev', 'lo', 'table', String(PROXY_ROUTES));
    const settings = ['net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1'];
    in_router('sysctl', ['-qw', ...settings], '');
    const host_networks = [`${NEAR}/32`];
    in_router('nft', ['-f', '-'], namespaceRules({ resolvers: [NAME_SERVER], host_networks }));
  }

  startProxy(): void {
    this.#admitted.clear();
    this.#proxy = new EgressProxyChild({
      guest_namespace: this.path('router'),
      own_namespace: this.path('router'),
      relay_port: RELAY_PORT,
      names_port: NAMES_PORT,
      uid: GATE_UID,
      roots_file: this.#roots_file,
      log: createLog('test', 'warn'),
      takeDenials: (denials) => this.denials.push(...denials),
      admit: async (guest, addresses) => {
        await this.#resolved_addresses.admit(guest, addresses);
        for (const each of addresses) this.#admitted.add(`${guest} ${each}`);
      },
      certify: (...asked) => this.#certificates.make(...asked),
      takeServerFailure: (_guest, name, reason) => this.server_failures.push(`${name}: ${reason}`),
    });
    void this.#proxy.run();
  }

  stopProxy(): void {
    this.#proxy?.close();
    this.#proxy = null;
  }

  /** As a crash does it. */
  killProxy(): void {
    this.#proxy?.kill();
  }

  /** As the agent does it: the proxy first, then the rules. */
  allow(
    policy: EgressPolicy,
    secrets: readonly GuestSecret[] = [],
    authority?: SecretsAuthority,
  ): Promise<void> {
    return this.#enforce([{ address: GUEST, policy, secrets, authority }]);
  }

  /** For the guest and its neighbour. */
  allowBoth(
    policy: EgressPolicy,
    of_both: readonly [Certified, Certified] = [NO_SECRETS, NO_SECRETS],
  ): Promise<void> {
    return this.#enforce([
      { address: GUEST, policy, ...of_both[0] },
      { address: NEIGHBOUR, policy, ...of_both[1] },
    ]);
  }

  /** As for a VM that is no longer assigned. */
  forget(): Promise<void> {
    return this.#enforce([]);
  }

  async #enforce(wanted: readonly (Omit<GuestPolicy, 'authority'> & Certified)[]): Promise<void> {
    this.#certificates.replace(wanted);
    const guests = wanted.map(({ authority, ...rest }) => ({
      ...rest,
      authority: authority ? fingerprintOfAuthority(authority) : null,
    }));
    await this.#proxy?.apply({ resolvers: [NAME_SERVER], host_networks: [NEAR], guests });
    const ports = { relay_port: RELAY_PORT, names_port: NAMES_PORT };
    inNamespace(
      this.path('router'),
      'nft',
      ['-f', '-'],
      policyRules({ guests, interfaces: 'vm*', ...ports }),
    );
    await until('the proxy knows the names', () => guests.every((each) => this.#knowsNames(each)));
  }

  /** Those that it looks up by itself. */
  #knowsNames({ address, policy }: GuestPolicy): boolean {
    if (policy.mode !== 'allow' || this.#proxy === null) return true;
    const resolved = policy.allow.flatMap((entry) => addressIn(entry.replace(/:[0-9]+$/, '')) ?? []);
    return resolved.every((each) => this.#admitted.has(`${address} ${each}`));
  }

  /** Runs a program as the guest, or as its neighbour. */
  spawn(command: string, args: readonly string[], who: 'guest' | 'neighbour' = 'guest'): ChildProcess {
    const child = spawn('nsenter', [`--net=${this.path(who)}`, '--', command, ...args], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.#children.push(child);
    return child;
  }

  async close(): Promise<void> {
    this.#ending.abort();
    this.stopProxy();
    await endAll(this.#children);
    await this.#outside?.close();
    for (const name of this.#namespaces) deleteNamespace(name);
  }
}
