/**
 * What a VM with an egress policy may reach, through the proxy, beside mode open: one guest's side, its host and an internet, each a
 * network namespace (test/support/egress-lab.ts). The policy allows the server's name; connections begin as TLS does.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { EgressPolicy } from '../src/shared/egress-policy.ts';
import { dnsQuery } from '../test/support/egress-attempts.ts';
import { EgressLab } from '../test/support/egress-lab.ts';
import { endAll, inNamespace } from '../test/support/egress-outside.ts';
import { helloFor } from '../test/support/tls-hello.ts';
import { type HostBench, type HostContext, type Measured, measured } from './figure.ts';

const [NAME, ADDRESS, SERVER_PORT] = ['web.test', '203.0.113.70', 8_444];
const SIDES: readonly { readonly name: string; readonly policy: EgressPolicy }[] = [
  { name: 'allowed', policy: { mode: 'allow', allow: [NAME] } },
  { name: 'mode open', policy: { mode: 'open', allow: [] } },
];
const MIB = 128;
const CONNECTIONS = 500;
const ROUND_TRIPS = 1_000;
const LOOK_UPS = 300;
/** The usual ports of that address have other servers. */
const REDIRECT = `
table ip bench {
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr ${ADDRESS} tcp dport 443 redirect to :${SERVER_PORT}
  }
}
`;

const JOBS = [
  { figure: 'sent_mib_per_second', unit: 'MiB/s', mode: 'up', count: MIB, of: (s: number) => MIB / s },
  { figure: 'received_mib_per_second', unit: 'MiB/s', mode: 'down', count: MIB, of: (s: number) => MIB / s },
  {
    ...{ figure: 'connection', unit: 'ms', mode: 'connect', count: CONNECTIONS },
    of: (s: number) => (s * 1000) / CONNECTIONS,
  },
  {
    ...{ figure: 'round_trip', unit: 'ms', mode: 'echo', count: ROUND_TRIPS },
    of: (s: number) => (s * 1000) / ROUND_TRIPS,
  },
  {
    ...{ figure: 'dns_lookup', unit: 'ms', mode: 'dns', count: LOOK_UPS },
    of: (s: number) => (s * 1000) / LOOK_UPS,
  },
] as const;

/** `perl -e … MODE COUNT HELLO QUERY` prints the seconds that it took. Behind the hello, a line tells the server what to do. */
const CLIENT = `
use strict; use Socket; use Time::HiRes qw(time);
my ($mode, $count, $hello, $query) = @ARGV; my ($buffer, $got) = ("x" x 65536, "");
sub tcp { socket(my $s, PF_INET, SOCK_STREAM, 0); setsockopt($s, 6, 1, 1); connect($s, sockaddr_in(443, inet_aton("${ADDRESS}"))) or die "connect: $!"; syswrite($s, pack("H*", $hello) . "$_[0]\\n"); sysread($s, $got, 1); return $s }
my $began = time;
if ($mode eq "up") { my $s = tcp("up"); for (1 .. $count * 16) { my $at = 0; while ($at < 65536) { $at += syswrite($s, $buffer, 65536 - $at, $at) // die } } shutdown($s, 1); sysread($s, $got, 1) or die }
elsif ($mode eq "down") { my $s = tcp("down $count"); my $all = 0; while (my $n = sysread($s, $got, 65536)) { $all += $n } $all == $count * 1048576 or die "$all" }
elsif ($mode eq "connect") { for (1 .. $count) { my $s = tcp("echo"); syswrite($s, "x"); sysread($s, $got, 1) or die } }
elsif ($mode eq "echo") { my $s = tcp("echo"); $began = time; for (1 .. $count) { syswrite($s, "x"); sysread($s, $got, 1) or die } }
else { socket(my $s, PF_INET, SOCK_DGRAM, 0); connect($s, sockaddr_in(53, inet_aton("10.0.2.3"))); for (1 .. $count) { send($s, pack("H*", $query), 0); recv($s, $got, 1500, 0) // die } }
print time - $began;
`;

async function run(context: HostContext): Promise<readonly Measured[]> {
  const lab = await EgressLab.open();
  const values = new Map<string, number[]>();
  let server: ChildProcess | null = null;
  try {
    inNamespace(lab.path('internet'), 'nft', ['-f', '-'], REDIRECT);
    server = await serve(lab);
    for (let round = 0; round <= context.runs; round++) {
      for (const job of JOBS) {
        for (const side of SIDES) {
          context.signal.throwIfAborted();
          await lab.allow(side.policy);
          const seconds = await timed(lab, job.mode, job.count);
          context.say(`round ${round}: ${side.name} ${job.figure} ${job.of(seconds).toFixed(3)} ${job.unit}`);
          const key = `${side.name} ${job.figure}`;
          if (round > 0) values.set(key, [...(values.get(key) ?? []), job.of(seconds)]);
        }
      }
    }
  } finally {
    if (server) await endAll([server]);
    await lab.close();
  }
  const [allowed, open] = SIDES.map(
    ({ name }) =>
      (figure: string) =>
        values.get(`${name} ${figure}`) ?? [],
  );
  return JOBS.map(({ figure, unit }) =>
    measured({
      ...{ bench: 'egress', figure, unit, values: allowed?.(figure) ?? [], beside: 'mode open' },
      ...{ beside_values: open?.(figure) ?? [], remark: '' },
    }),
  );
}

async function serve(lab: EgressLab): Promise<ChildProcess> {
  const program = join(import.meta.dirname, 'egress-server.ts');
  const words = [`--net=${lab.path('internet')}`, '--', process.execPath, program, String(SERVER_PORT)];
  const server = spawn('nsenter', words, { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(server.stdout, 'data');
  return server;
}

async function timed(lab: EgressLab, mode: string, count: number): Promise<number> {
  const [hello, query] = [helloFor(NAME), dnsQuery(NAME)].map((bytes) => bytes.toString('hex'));
  const child = lab.spawn('perl', ['-e', CLIENT, mode, String(count), hello ?? '', query ?? '']);
  if (!child.stdout) throw new Error('no output');
  const said = Number(await text(child.stdout));
  if (!(said > 0)) throw new Error(`the client failed in ${mode}`);
  return said;
}

export const egressBench: HostBench = {
  alone: true,
  name: 'egress',
  summary: 'throughput and latency of what an egress policy allows, beside mode open',
  run,
};
