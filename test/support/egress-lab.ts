/**
 * A guest, its host and an internet, each a network namespace: the host's side as the agent sets it up, the guest's as a VM would be.
 *
 *   guest 198.18.7.2 ── vm0 ─ router (the installation's namespace: packet rules, gate) ─ 198.51.100.2 internet
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { GateChild } from '../../src/host/egress/gate-child.ts';
import type { CountedDenial, Denial } from '../../src/host/egress/gate-messages.ts';
import { GATE_ROUTES, guestRules } from '../../src/host/egress/guest-rules.ts';
import { runPacketLog } from '../../src/host/egress/packet-log.ts';
import { DENIED_LOG_GROUP, GATE_MARK, LOG_DENIED } from '../../src/host/network/addresses.ts';
import { CLOSED_IPV4 } from '../../src/lib/closed-networks.ts';
import type { EgressPolicy } from '../../src/lib/egress-policy.ts';
import { createLog } from '../../src/lib/log.ts';
import { until } from './waiting.ts';

export const GUEST = '198.18.7.2';
const RELAY_PORT = 7_443;
const NAMES_PORT = 7_053;
const GATE_UID = 2_999_998;

export interface Contact {
  readonly protocol: string;
  readonly address: string;
  readonly port: number;
  readonly first: string;
}

/** Name servers' lines for dnsmasq(8). */
export const ZONE = [
  ...[
    'address=/allowed.test/203.0.113.10',
    'address=/evil.test/203.0.113.66',
    'address=/db.test/203.0.113.30',
  ],
  ...['address=/wild.test/203.0.113.50', 'address=/rebind.test/10.0.0.5', 'address=/loop.test/127.0.0.1'],
  ...[
    'address=/meta.test/169.254.169.254',
    'host-record=mixed.test,203.0.113.10',
    'host-record=mixed.test,192.168.7.7',
  ],
  ...['cname=chain.test,link.evilchain.test', 'cname=link.evilchain.test,end.evilchain.test'],
  ...[
    'host-record=end.evilchain.test,203.0.113.40',
    'cname=inward.test,secret.test',
    'host-record=secret.test,10.0.0.9',
  ],
  ...['host-record=self.test,198.51.100.1', 'local-ttl=0'],
];

export class EgressLab {
  readonly contacts: Contact[] = [];
  readonly denials: CountedDenial[] = [];
  readonly #names: readonly [guest: string, router: string, internet: string];
  readonly #children: ChildProcess[] = [];
  readonly #ending = new AbortController();
  readonly #folder = mkdtempSync(join(tmpdir(), 'berth-egress-'));
  #gate: GateChild | null = null;

  private constructor() {
    const name = (part: string) => `eg${process.pid}${part}`;
    this.#names = [name('g'), name('r'), name('i')];
  }

  static async open(): Promise<EgressLab> {
    const lab = new EgressLab();
    try {
      lab.#build();
      await lab.#serve();
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

  #take(denial: Denial): void {
    this.denials.push({ ...denial, at_ms: Date.now(), count: 1 });
  }

  path(which: 'guest' | 'router' | 'internet'): string {
    return `/run/netns/${this.#names[['guest', 'router', 'internet'].indexOf(which)]}`;
  }

  #build(): void {
    const [guest, router, internet] = this.#names;
    for (const name of this.#names) ip('netns', 'add', name);
    for (const name of this.#names) ip('-n', name, 'link', 'set', 'lo', 'up');
    ip('link', 'add', 'vm0', 'netns', router, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', guest);
    ip('link', 'add', 'out', 'netns', router, 'type', 'veth', 'peer', 'name', 'in', 'netns', internet);
    const setUp = (name: string, link: string, ...addresses: string[]) => {
      for (const address of addresses) {
        ip('-n', name, 'address', 'add', address, 'dev', link, ...(address.includes(':') ? ['nodad'] : []));
      }
      ip('-n', name, 'link', 'set', link, 'up');
    };
    setUp(router, 'vm0', '10.0.2.2/32', '10.0.2.3/32', 'fd00:7::1/64');
    setUp(guest, 'eth0', `${GUEST}/32`, 'fd00:7::2/64');
    setUp(router, 'out', '198.51.100.1/24', '2001:db8:1::1/64');
    setUp(internet, 'in', '198.51.100.2/24', '2001:db8:1::2/64');
    ip('-n', router, 'route', 'add', `${GUEST}/32`, 'dev', 'vm0');
    ip('-n', guest, 'route', 'add', 'default', 'via', '10.0.2.2', 'dev', 'eth0', 'onlink');
    ip('-n', guest, 'route', 'add', 'default', 'via', 'fd00:7::1');
    ip('-n', router, 'route', 'add', 'default', 'via', '198.51.100.2');
    ip('-n', router, 'route', 'add', 'default', 'via', '2001:db8:1::2');
    ip('-n', internet, 'route', 'add', `${GUEST}/32`, 'via', '198.51.100.1');
    ip('-n', internet, 'route', 'add', 'fd00:7::/64', 'via', '2001:db8:1::1');
    for (const network of ['203.0.113.0/24', '192.168.7.0/24', '10.0.0.0/24', '169.254.169.254/32']) {
      ip('-n', internet, 'route', 'add', 'local', network, 'dev', 'lo');
    }
    ip('-n', internet, 'address', 'add', '2001:db8:9::66/128', 'dev', 'lo', 'nodad');
    ip('-n', router, 'rule', 'add', 'fwmark', String(GATE_MARK), 'lookup', String(GATE_ROUTES));
    ip('-n', router, 'route', 'add', 'local', 'default', 'dev', 'lo', 'table', String(GATE_ROUTES));
    const settings = ['net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1'];
    inNamespace(this.path('router'), 'sysctl', ['-qw', ...settings]);
    inNamespace(this.path('guest'), 'sysctl', ['-qw', 'net.ipv4.ping_group_range=0 2147483647']);
    inNamespace(this.path('router'), 'nft', ['-f', '-'], STATIC_RULES);
  }

  async #serve(): Promise<void> {
    const zone = join(this.#folder, 'dnsmasq.conf');
    writeFileSync(zone, `${ZONE.join('\n')}\n`);
    const enter = [`--net=${this.path('internet')}`, '--'];
    const flags = ['--keep-in-foreground', `--conf-file=${zone}`, '--pid-file=', '--no-resolv', '--no-hosts'];
    const names = [
      '--listen-address=198.51.100.2',
      '--bind-interfaces',
      '--port=5453',
      '--user=root',
      '--no-negcache',
    ];
    this.#children.push(spawn('nsenter', [...enter, 'dnsmasq', ...flags, ...names], { stdio: 'ignore' }));
    const program = join(import.meta.dirname, 'egress-internet.ts');
    const addresses = [
      '203.0.113.10',
      '203.0.113.20',
      '203.0.113.53',
      '203.0.113.66',
      '192.168.7.7',
      '2001:db8:9::66',
    ];
    const servers = spawn('nsenter', [...enter, process.execPath, program, ...addresses], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#children.push(servers);
    createInterface(servers.stdout).on('line', (line) => this.contacts.push(JSON.parse(line) as Contact));
    await until('the internet serves', () => this.contacts.some(({ protocol }) => protocol === 'ready'));
  }

  startGate(): void {
    this.#gate = new GateChild({
      guest_namespace: this.path('router'),
      own_namespace: this.path('router'),
      relay_port: RELAY_PORT,
      names_port: NAMES_PORT,
      uid: GATE_UID,
      log: createLog('test', 'warn'),
      takeDenials: (denials) => this.denials.push(...denials),
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
  async allow(policy: EgressPolicy): Promise<void> {
    const guests = [{ address: GUEST, policy }];
    await this.#gate?.apply({ resolvers: ['198.51.100.2:5453'], host_networks: ['198.51.100.1'], guests });
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
    for (const child of this.#children) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    for (const name of this.#names) {
      try {
        ip('netns', 'delete', name);
      } catch {
        // It was not made.
      }
    }
    rmSync(this.#folder, { recursive: true, force: true });
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

function ip(...args: string[]): void {
  execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'pipe'] });
}

export function inNamespace(path: string, command: string, args: readonly string[], input = ''): string {
  return execFileSync('nsenter', [`--net=${path}`, '--', command, ...args], { input, encoding: 'utf8' });
}
