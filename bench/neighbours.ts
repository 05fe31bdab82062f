/**
 * One VM's latency while another VM of the host is flooded, or floods, beside the same alone: requests to its HTTP port, and its own
 * connections, look-ups and denied attempts through the egress proxy. The floods yield the processor to others, as VMs do by their
 * shares; what is left is what they do to the proxy and to the proxy.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { get } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { dnsQuery } from '../test/support/egress-attempts.ts';
import { EgressLab, NEIGHBOUR } from '../test/support/egress-lab.ts';
import { endAll, inNamespace } from '../test/support/egress-outside.ts';
import { startLineProgram, startProxy } from '../test/support/line-program.ts';
import { helloFor } from '../test/support/tls-hello.ts';
import { until } from '../test/support/waiting.ts';
import { type HostBench, type HostContext, type Measured, measured } from './figure.ts';
import { during, type Flood, flooder, type Latency, latencyOf } from './flood.ts';

const SAMPLES = 100;
const FLOOD_SECONDS = 600;
/** A guest's program. It ends with its stdin. */
const GUEST = `const server = require('node:http').createServer((q, r) => r.end(q.url === '/big' ? Buffer.alloc(2 ** 24) : 'hello'));
  server.listen(0, '127.0.0.1', 2048, () => console.log(server.address().port));
  process.stdin.resume().once('end', () => process.exit());`;
/** Opens and closes connections to a port: `perl -e … PORT`. */
const CONNECT = `use Socket; for (;;) { socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, sockaddr_in($ARGV[0], inet_aton("127.0.0.1"))) }`;

type Sample = () => Promise<number[]>;
type Found = Map<string, { readonly alone: Latency[]; readonly flooded: Latency[] }>;

async function run(context: HostContext): Promise<readonly Measured[]> {
  const found: Found = new Map();
  await floodHttp(context, found);
  await floodProxy(context, found);
  return [...found].flatMap(([figure, { alone, flooded }]) =>
    (['p50', 'p99'] as const).map((key) =>
      measured({
        ...{ bench: 'neighbours', figure: `${figure}_${key}`, unit: 'ms', remark: '' },
        ...{ values: flooded.map((each) => each[key]), beside: 'without the flood' },
        beside_values: alone.map((each) => each[key]),
      }),
    ),
  );
}

/** One round is discarded. */
async function compare(
  { runs, say, signal }: HostContext,
  found: Found,
  what: string,
  flood: Flood,
  sample: Sample,
): Promise<void> {
  const figure = `${what}_beside_${flood.name}`;
  const rounds = { alone: [] as Latency[], flooded: [] as Latency[] };
  for (let round = 0; round <= runs; round++) {
    const alone = latencyOf(await sample());
    const flooded = latencyOf(await during(flood, signal, sample));
    say(`round ${round}: ${figure} ${JSON.stringify({ alone, flooded })}`);
    if (round === 0) continue;
    rounds.alone.push(alone);
    rounds.flooded.push(flooded);
  }
  found.set(figure, rounds);
}

async function floodHttp(context: HostContext, found: Found): Promise<void> {
  const guests = [await startLineProgram(['-e', GUEST]), await startLineProgram(['-e', GUEST])];
  const proxy = await startProxy(...guests.map(({ first }) => `127.0.0.1:${first}`));
  try {
    const origin = `http://bench.localhost:${proxy.port}`;
    const load = (...words: string[]) => [
      'h2load',
      '--h1',
      '-D',
      String(FLOOD_SECONDS),
      `--connect-to=127.0.0.1:${proxy.port}`,
      ...words,
    ];
    const several = (words: readonly string[], count: number) =>
      Array.from({ length: count }, () => flooder(words));
    const floods: Flood[] = [
      { name: 'requests', start: () => several(load('-c', '512', `${origin}/`), 1) },
      { name: 'downloads', start: () => several(load('-c', '32', `${origin}/big`), 1) },
      { name: 'http_connections', start: () => several(['perl', '-e', CONNECT, proxy.port], 4) },
    ];
    for (const flood of floods)
      await compare(context, found, 'http_request', flood, () => requests(Number(proxy.port)));
  } finally {
    for (const each of [proxy, ...guests]) each.end();
  }
}

/** To the other instance, each by a new connection. */
async function requests(port: number): Promise<number[]> {
  const samples: number[] = [];
  for (let each = 0; each < SAMPLES; each++) {
    const began_ms = performance.now();
    const asked = get({ host: '127.0.0.1', port, agent: false, headers: { host: 'bench-2.localhost' } });
    const [response] = await once(asked, 'response');
    const body = await text(response);
    if (body !== 'hello') throw new Error(`the other instance answered ${response.statusCode}: ${body}`);
    samples.push(performance.now() - began_ms);
  }
  return samples;
}

/** Of the flood and of its neighbour. Each has a server of its own. */
const SERVERS = [
  { name: 'web.test', address: '203.0.113.70', port: 8_444 },
  { name: 'api.test', address: '203.0.113.71', port: 8_445 },
] as const;
const [FLOODED, MEASURED] = SERVERS;
const REDIRECT = `
table ip bench {
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
${SERVERS.map(({ address, port }) => `    ip daddr ${address} tcp dport 443 redirect to :${port}`).join('\n')}
  }
}
`;

/** `perl -e … MODE HELLO QUERY`. The measured modes print a number of milliseconds for each sample. */
const CLIENT = `
use strict; use Socket; use Time::HiRes qw(time);
my ($mode, $address, $hello, $query, $count) = @ARGV; my ($buffer, $got) = ("x" x 65536, "");
$hello = pack("H*", $hello); $query = pack("H*", $query);
sub tcp { socket(my $s, PF_INET, SOCK_STREAM, 0); setsockopt($s, 6, 1, 1); connect($s, sockaddr_in(443, inet_aton($address))) or return; syswrite($s, $hello . "$_[0]\\n"); sysread($s, $got, 1); return $s }
sub names { socket(my $s, PF_INET, SOCK_DGRAM, 0); connect($s, sockaddr_in(53, inet_aton("10.0.2.3"))); return $s }
sub timed { my $code = shift; for (1 .. $count) { my $began = time; $code->(); printf "%.3f\\n", (time - $began) * 1000 } }
if ($mode eq "connection") { timed(sub { my $s = tcp("echo") or die "connect: $!"; syswrite($s, "x"); sysread($s, $got, 1) or die }) }
elsif ($mode eq "look_up") { my $s = names(); timed(sub { send($s, $query, 0); recv($s, $got, 1500, 0) // die }) }
elsif ($mode eq "connections") { for (;;) { my $s = tcp("echo") or next; syswrite($s, "x") } }
elsif ($mode eq "bytes") { my @all = grep { $_ } map { tcp("up") } 1 .. $count; for (;;) { syswrite($_, $buffer) for @all } }
elsif ($mode eq "look_ups") { my $s = names(); for (;;) { send($s, $query, 0); recv($s, $got, 1500, MSG_DONTWAIT) } }
else { for (my $n = 0; ; $n++) { socket(my $s, PF_INET, SOCK_DGRAM, 0); send($s, "x", 0, sockaddr_in(1000 + $n % 60000, inet_aton("203.0.113." . (100 + $n % 100)))); my $q = $query; substr($q, 13, 3) = sprintf "%03d", $n % 1000; send($s, $q, 0, sockaddr_in(53, inet_aton("10.0.2.3"))) if $n % 20 == 0 } }
`;

async function floodProxy(context: HostContext, found: Found): Promise<void> {
  const lab = await EgressLab.open();
  const servers: ChildProcess[] = [];
  try {
    inNamespace(lab.path('internet'), 'nft', ['-f', '-'], REDIRECT);
    for (const { port } of SERVERS) servers.push(await serve(lab, port));
    await lab.allowBoth({ mode: 'allow', allow: SERVERS.map(({ name }) => name) });
    const words = (mode: string, { name, address }: (typeof SERVERS)[number], count: number) => {
      const [hello, query] = [helloFor(name), dnsQuery(name)].map((bytes) => bytes.toString('hex'));
      return ['perl', '-e', CLIENT, mode, address, hello ?? '', query ?? '', String(count)];
    };
    const flood = (name: string, mode: string, processes: number): Flood => ({
      name,
      start: () =>
        Array.from({ length: processes }, () =>
          flooder(words(mode, FLOODED, 32), ['nsenter', `--net=${lab.path('guest')}`, '--']),
        ),
    });
    const sample = (mode: string) => async () => {
      const child = spawn(
        'nsenter',
        [`--net=${lab.path('neighbour')}`, '--', ...words(mode, MEASURED, SAMPLES)],
        {
          stdio: ['ignore', 'pipe', 'inherit'],
        },
      );
      const samples = (await text(child.stdout)).trim().split('\n').map(Number);
      if (samples.length !== SAMPLES) throw new Error(`${mode} failed after ${samples.length} samples`);
      return samples;
    };
    const denied = flood('denied_attempts', 'denied', 1);
    const floods = [
      flood('new_connections', 'connections', 4),
      flood('bytes', 'bytes', 2),
      flood('look_ups', 'look_ups', 1),
      denied,
    ];
    for (const each of floods)
      for (const what of ['connection', 'look_up']) await compare(context, found, what, each, sample(what));
    await compare(context, found, 'denial_told', denied, () => denials(lab));
  } finally {
    await endAll(servers);
    await lab.close();
  }
}

/** From a denied connection of the neighbour until it is known. */
async function denials(lab: EgressLab): Promise<number[]> {
  const samples: number[] = [];
  for (let port = 2_001; port <= 2_010; port++) {
    lab.denials.length = 0;
    const began_ms = performance.now();
    const attempt = `use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, sockaddr_in(${port}, inet_aton("203.0.113.66")))`;
    lab.spawn('perl', ['-e', attempt], 'neighbour');
    await until(
      'the denial',
      () => lab.denials.some((each) => each.guest === NEIGHBOUR && each.port === port),
      { every_ms: 5 },
    );
    samples.push(performance.now() - began_ms);
  }
  return samples;
}

async function serve(lab: EgressLab, port: number): Promise<ChildProcess> {
  const program = join(import.meta.dirname, 'egress-server.ts');
  const words = [`--net=${lab.path('internet')}`, '--', process.execPath, program, String(port)];
  const server = spawn('nsenter', words, { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(server.stdout, 'data');
  return server;
}

export const neighboursBench: HostBench = {
  alone: true,
  name: 'neighbours',
  summary: 'the latency of one VM while another is flooded, beside the same without the flood',
  run,
};
