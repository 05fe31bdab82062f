/**
 * An internet for tests of egress: a network namespace with a name server, and with servers that report who connected.
 * A link leads from there to a router's namespace, or to this machine's own.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { until } from './waiting.ts';

/**
 * The names that every guest's resolver asks. Not in the link's network: that is closed to guests' users by the rules of every
 * installation on this machine that has seen the link, also by those that one which was killed left behind.
 */
export const NAME_SERVER = '203.0.113.2';
/** The internet's end of the link. */
export const FAR = '198.51.100.2';
/** The router, which is the guest's host. */
export const NEAR = '198.51.100.1';

export interface Contact {
  readonly protocol: string;
  readonly address: string;
  readonly port: number;
  readonly first: string;
  /** When it was told, as performance.now() counts. */
  readonly at_ms: number;
}

/** Lines for dnsmasq(8). */
const ZONE = [
  ...[
    'address=/allowed.test/203.0.113.10',
    'address=/evil.test/203.0.113.66',
    'address=/db.test/203.0.113.30',
  ],
  ...[
    'address=/wild.test/203.0.113.50',
    'address=/web.test/203.0.113.70',
    'address=/rebind.test/10.0.0.5',
    'address=/loop.test/127.0.0.1',
  ],
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
  // Those of secret-lab.ts.
  ...['api', 'other', 'expired', 'selfsigned', 'wrongname'].map(
    (name, at) => `address=/${name}.test/203.0.113.${71 + at}`,
  ),
  ...[`host-record=self.test,${NEAR}`, 'local-ttl=0'],
];

/** The public address of a name; null: it has none, or gets it in another way than by a line of its own. */
export function addressIn(name: string): string | null {
  const line = ZONE.find((each) => each.startsWith(`address=/${name}/203.0.113.`));
  return line?.split('/')[2] ?? null;
}

export class EgressOutside {
  readonly contacts: Contact[] = [];
  readonly name = `eg${process.pid}i`;
  readonly #children: ChildProcess[] = [];
  readonly #folder = mkdtempSync(join(tmpdir(), 'berth-egress-'));
  readonly #router: string | null;
  readonly #link: string;
  #turn: Server | undefined;

  private constructor(router: string | null, link: string) {
    this.#router = router;
    this.#link = link;
  }

  /** `router`: a namespace; null: this one. `link`: the name of its interface. */
  static async open(router: string | null, link: string): Promise<EgressOutside> {
    const outside = new EgressOutside(router, link);
    try {
      if (router === null) outside.#turn = await until('the other tests are done', takeTurn, TURN);
      outside.#build();
      await outside.#serve();
      return outside;
    } catch (error) {
      await outside.close();
      throw error;
    }
  }

  get path(): string {
    return `/run/netns/${this.name}`;
  }

  #build(): void {
    const { name } = this;
    const near = this.#router === null ? [] : ['-n', this.#router];
    ip('netns', 'add', name);
    ip('-n', name, 'link', 'set', 'lo', 'up');
    const place = this.#router === null ? [] : ['netns', this.#router];
    ip('link', 'add', this.#link, ...place, 'type', 'veth', 'peer', 'name', 'in', 'netns', name);
    ip(...near, 'address', 'add', `${NEAR}/30`, 'dev', this.#link);
    ip(...near, 'link', 'set', this.#link, 'up');
    ip('-n', name, 'address', 'add', `${FAR}/30`, 'dev', 'in');
    ip('-n', name, 'address', 'add', `${NAME_SERVER}/32`, 'dev', 'lo');
    ip('-n', name, 'link', 'set', 'in', 'up');
    ip('-n', name, 'route', 'add', 'default', 'via', NEAR);
    for (const network of ['203.0.113.0/24', '192.168.7.0/24', '10.0.0.0/24', '169.254.169.254/32']) {
      ip('-n', name, 'route', 'add', 'local', network, 'dev', 'lo');
    }
    ip('-n', name, 'address', 'add', '2001:db8:9::66/128', 'dev', 'lo', 'nodad');
    ip(...near, 'route', 'add', '203.0.113.0/24', 'via', FAR);
  }

  async #serve(): Promise<void> {
    const zone = join(this.#folder, 'dnsmasq.conf');
    writeFileSync(zone, `${ZONE.join('\n')}\n`);
    const enter = [`--net=${this.path}`, '--'];
    const flags = ['--keep-in-foreground', `--conf-file=${zone}`, '--pid-file=', '--no-resolv', '--no-hosts'];
    const names = [`--listen-address=${NAME_SERVER}`, '--bind-interfaces', '--user=root', '--no-negcache'];
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
    createInterface(servers.stdout).on('line', (line) =>
      this.contacts.push({ ...(JSON.parse(line) as Contact), at_ms: performance.now() }),
    );
    await until('the internet serves', () => this.contacts.some(({ protocol }) => protocol === 'ready'));
  }

  async close(): Promise<void> {
    await endAll(this.#children);
    deleteNamespace(this.name);
    rmSync(this.#folder, { recursive: true, force: true });
    this.#turn?.close();
  }
}

/** Several installations beside it would need the same routes of this machine. */
const TURN = { timeout_ms: 900_000, every_ms: 500 };

/** A socket without a file, which the kernel closes with its process. */
async function takeTurn(): Promise<Server | false> {
  const server = createServer();
  server.listen('\0berth-test-internet');
  const is_ours = await once(server, 'listening').then(
    () => true,
    () => false,
  );
  return is_ours && server;
}

export async function endAll(children: readonly ChildProcess[]): Promise<void> {
  for (const child of children) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
}

export function deleteNamespace(name: string): void {
  try {
    ip('netns', 'delete', name);
  } catch {
    // It was not made.
  }
}

export function ip(...args: string[]): void {
  execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'pipe'] });
}

export function inNamespace(path: string, command: string, args: readonly string[], input = ''): string {
  return execFileSync('nsenter', [`--net=${path}`, '--', command, ...args], { input, encoding: 'utf8' });
}

const PERMITTED = new Set([
  ...['203.0.113.10:443', '203.0.113.10:80', '203.0.113.20:8080', '203.0.113.30:5432', '203.0.113.40:443'],
  ...['203.0.113.40:80', '203.0.113.50:443', '203.0.113.50:80'],
]);

/** Whether a contact is none that the policy of egress-attempts.ts allows. */
export function isLeak({ protocol, address, port, first }: Contact): boolean {
  return protocol !== 'tcp' || !PERMITTED.has(`${address}:${port}`) || /evil/i.test(first);
}

/** A table that counts what comes from `guest`: other protocols, what is not to the allowed address, IPv6. */
export function packetCounters(guest: string): string {
  return `
table inet count {}
delete table inet count
table inet count {
  counter others { }
  counter direct { }
  counter six { }
  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
    ip saddr ${guest} meta l4proto != { tcp, udp } counter name others
    ip saddr ${guest} ip daddr != 203.0.113.20 counter name direct
    ip6 saddr fd00:7::/64 meta l4proto != icmpv6 counter name six
  }
}
`;
}
