/**
 * A guest, its host and an internet, each a network namespace: the host's side as the agent sets it up, the guest's as a VM would be.
 *
 *   guest 198.18.7.2 ── vm0 ─ router (the installation's namespace: packet rules, gate) ─ 198.51.100.2 internet
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { SecretsAuthority } from '../../src/agent-api/secret-types.ts';
import { CertificateSource } from '../../src/host/egress/certificate-source.ts';
import { GateChild } from '../../src/host/egress/gate-child.ts';
import type { CountedDenial, Denial } from '../../src/host/egress/gate-messages.ts';
import { GATE_ROUTES, guestRules } from '../../src/host/egress/guest-rules.ts';
import { runPacketLog } from '../../src/host/egress/packet-log.ts';
import type { GuestSecret } from '../../src/host/egress/placeholders.ts';
import { DENIED_LOG_GROUP, GATE_MARK, LOG_DENIED } from '../../src/host/network/addresses.ts';
import { CLOSED_IPV4 } from '../../src/lib/closed-networks.ts';
import type { EgressPolicy } from '../../src/lib/egress-policy.ts';
import { createLog } from '../../src/lib/log.ts';
import {
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

export const GUEST = '198.18.7.2';
const RELAY_PORT = 7_443;
const NAMES_PORT = 7_053;
const GATE_UID = 2_999_998;

export class EgressLab {
  readonly denials: CountedDenial[] = [];
  readonly #guest = `eg${process.pid}g`;
  readonly #router = `eg${process.pid}r`;
  readonly #children: ChildProcess[] = [];
  readonly #ending = new AbortController();
  #outside: EgressOutside | null = null;
  readonly troubles: string[] = [];
  readonly #certificates = new CertificateSource();
  readonly #roots_file: string;
  #gate: GateChild | null = null;

  private constructor(roots_file: string) {
    this.#roots_file = roots_file;
  }

  /** `roots_file`: whom the gate trusts beside the usual authorities. */
  static async open(roots_file = '/etc/ssl/certs/ca-certificates.crt'): Promise<EgressLab> {
    const lab = new EgressLab(roots_file);
    try {
      for (const name of [lab.#guest, lab.#router]) ip('netns', 'add', name);
      lab.#outside = await EgressOutside.open(lab.#router, 'out');
      lab.#build();
      lab.startGate();
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

  path(which: 'guest' | 'router' | 'internet'): string {
    if (which === 'internet') return this.#outside?.path ?? '';
    return `/run/netns/${which === 'guest' ? this.#guest : this.#router}`;
  }

  #build(): void {
    const [guest, router] = [this.#guest, this.#router];
    for (const name of [guest, router]) ip('-n', name, 'link', 'set', 'lo', 'up');
    ip('link', 'add', 'vm0', 'netns', router, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', guest);
    for (const address of ['10.0.2.2/32', '10.0.2.3/32'])
      ip('-n', router, 'address', 'add', address, 'dev', 'vm0');
    ip('-n', router, 'address', 'add', 'fd00:7::1/64', 'dev', 'vm0', 'nodad');
    ip('-n', router, 'link', 'set', 'vm0', 'up');
    ip('-n', guest, 'address', 'add', `${GUEST}/32`, 'dev', 'eth0');
    ip('-n', guest, 'address', 'add', 'fd00:7::2/64', 'dev', 'eth0', 'nodad');
    ip('-n', guest, 'link', 'set', 'eth0', 'up');
    ip('-n', router, 'route', 'add', `${GUEST}/32`, 'dev', 'vm0');
    ip('-n', guest, 'route', 'add', 'default', 'via', '10.0.2.2', 'dev', 'eth0', 'onlink');
    ip('-n', guest, 'route', 'add', 'default', 'via', 'fd00:7::1');
    ip('-n', router, 'route', 'add', 'default', 'via', FAR);
    ip('-n', router, 'rule', 'add', 'fwmark', String(GATE_MARK), 'lookup', String(GATE_ROUTES));
    ip('-n', router, 'route', 'add', 'local', 'default', 'dev', 'lo', 'table', String(GATE_ROUTES));
    const settings = ['net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1'];
    inNamespace(this.path('router'), 'sysctl', ['-qw', ...settings]);
    inNamespace(this.path('router'), 'nft', ['-f', '-'], STATIC_RULES);
  }

  startGate(): void {
    this.#gate = new GateChild({
      guest_namespace: this.path('router'),
      own_namespace: this.path('router'),
      relay_port: RELAY_PORT,
      names_port: NAMES_PORT,
      uid: GATE_UID,
      roots_file: this.#roots_file,
      log: createLog('test', 'warn'),
      takeDenials: (denials) => this.denials.push(...denials),
      certify: (name, public_key) => this.#certificates.make(name, public_key),
      takeTrouble: (_guest, name, reason) => this.troubles.push(`${name}: ${reason}`),
    });
    void this.#gate.run();
  }

  stopGate(): void {
    this.#gate?.close();
    this.#gate = null;
  }

  /** As a crash does it. */
  killGate(): void {
    this.#gate?.kill();
  }

  /** As the agent does it: the gate first, then the rules. */
  async allow(
    policy: EgressPolicy,
    secrets: readonly GuestSecret[] = [],
    authority: SecretsAuthority | null = null,
  ): Promise<void> {
    const guests = [{ address: GUEST, policy, secrets }];
    this.#certificates.replace(authority, secrets);
    const { fingerprint } = this.#certificates;
    await this.#gate?.apply({
      resolvers: [NAME_SERVER],
      host_networks: [NEAR],
      guests,
      authority: fingerprint,
    });
    const ports = { relay_port: RELAY_PORT, names_port: NAMES_PORT, log_group: DENIED_LOG_GROUP };
    inNamespace(this.path('router'), 'nft', ['-f', '-'], guestRules({ guests, interfaces: 'vm*', ...ports }));
  }

  /** Runs a program as the guest. */
  spawn(command: string, args: readonly string[]): ChildProcess {
    const child = spawn('nsenter', [`--net=${this.path('guest')}`, '--', command, ...args], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.#children.push(child);
    return child;
  }

  async close(): Promise<void> {
    this.#ending.abort();
    this.stopGate();
    await endAll(this.#children);
    await this.#outside?.close();
    for (const name of [this.#guest, this.#router]) deleteNamespace(name);
  }
}

/** What holds for every guest, whatever its policy. */
const STATIC_RULES = `
table inet guests {
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname "vm*" jump guest
  }
  chain guest {
    ct direction reply accept
    ip daddr { ${CLOSED_IPV4.join(', ')} } goto refuse
    meta nfproto ipv6 drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname "vm*" ct direction original meta mark != ${GATE_MARK} goto refuse
  }
  chain refuse {
    ${LOG_DENIED}
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
}
`;
