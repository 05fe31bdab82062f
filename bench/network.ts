/**
 * The guests' network: a TAP device beside QEMU's user network (BERTH_GUEST_NETWORK=user), each in an installation of its own. The
 * guests talk to an "internet" in a network namespace of this machine (outside.ts). Processor time is QEMU's, in which the user
 * network runs; packets of a TAP device are sent in it too.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathsIn } from '../src/config/paths.ts';
import { findOrphans } from '../src/host/vm/qemu-process.ts';
import { pause } from '../src/shared/retry.ts';
import { OUTSIDE, Outside } from '../test/support/outside.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { Installation } from './installation.ts';
import { makeKey, type SshKey, type SshTarget, ssh } from './ssh.ts';

const MIB = 128;
const CONNECTIONS = 200;
const PACKETS = 500;
const LOOKUPS = 200;
const TICKS_PER_SECOND = 100;
const TEMPLATE_MS = 300_000;

/** In the guest: `perl -e … MODE HOST COUNT` prints the seconds that it took. */
const PERL = `
use Socket; my ($mode, $host, $count) = @ARGV; my $buffer = "x" x 65536; my $got;
sub now { open(my $f, "<", "/proc/uptime"); return (split / /, <$f>)[0] }
sub tcp { my ($port) = @_; socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, sockaddr_in($port, inet_aton($host))) or die "connect: $!"; return $s }
sub udp { my ($port) = @_; socket(my $s, PF_INET, SOCK_DGRAM, 0); setsockopt($s, SOL_SOCKET, SO_RCVTIMEO, pack("qq", 1, 0)); connect($s, sockaddr_in($port, inet_aton($host))) or die; return $s }
my $began = now();
if ($mode eq "up") { my $s = tcp(7001); for (1 .. $count * 16) { my $at = 0; while ($at < 65536) { $at += syswrite($s, $buffer, 65536 - $at, $at) // die } } shutdown($s, 1); sysread($s, $got, 1) }
elsif ($mode eq "down") { my $s = tcp(7002); syswrite($s, "$count\\n"); my $all = 0; while (my $n = sysread($s, $got, 65536)) { $all += $n } $all == $count * 1048576 or die "$all" }
elsif ($mode eq "connect") { for (1 .. $count) { my $s = tcp(7003); sysread($s, $got, 1) } }
elsif ($mode eq "udp") { my $s = udp(7004); for (1 .. $count) { do { send($s, "x", 0) } until defined recv($s, $got, 10, 0) } }
else { my $s = udp(53); my $q = pack("n6", 7, 256, 1, 0, 0, 0) . join("", map { chr(length) . $_ } qw(deb debian org)) . pack("Cnn", 0, 1, 1); for (1 .. $count) { do { send($s, $q, 0) } until defined recv($s, $got, 1500, 0) } }
print now() - $began;
`;

const JOBS = [
  { figure: 'sent_mib_per_second', unit: 'MiB/s', mode: 'up', count: MIB, of: (s: number) => MIB / s },
  { figure: 'received_mib_per_second', unit: 'MiB/s', mode: 'down', count: MIB, of: (s: number) => MIB / s },
  {
    ...{ figure: 'connections_per_second', unit: '/s', mode: 'connect', count: CONNECTIONS },
    of: (s: number) => CONNECTIONS / s,
  },
  {
    ...{ figure: 'udp_round_trip', unit: 'ms', mode: 'udp', count: PACKETS },
    of: (s: number) => (s * 1000) / PACKETS,
  },
  {
    ...{ figure: 'dns_lookup', unit: 'ms', mode: 'dns', count: LOOKUPS },
    of: (s: number) => (s * 1000) / LOOKUPS,
  },
] as const;

interface Side {
  readonly name: string;
  readonly installation: Installation;
  readonly values: Map<string, number[]>;
}

interface Guest {
  readonly target: SshTarget;
  readonly pid: number;
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, signal } = context;
  const key = await makeKey(scratch_dir);
  await using _outside = await Outside.open();
  const user = await Installation.start({
    project_dir: join(import.meta.dirname, '..'),
    data_dir: join(scratch_dir, 'data'),
    log_path: join(scratch_dir, 'log'),
    accel: installation.accel,
    signal,
    settings: { BERTH_GUEST_NETWORK: 'user', BERTH_SSH_PORTS: '24000-24999' },
  });
  try {
    const sides: Side[] = [
      { name: 'TAP device', installation, values: new Map() },
      { name: 'user network', installation: user, values: new Map() },
    ];
    for (const { installation: each } of sides) await each.api.addKey('bench-network', key.public_key);
    await traffic(context, sides, key);
    await starts(context, sides, key);
    return figures(sides);
  } finally {
    await user.end();
  }
}

function note({ values }: Side, figure: string, value: number): void {
  values.set(figure, [...(values.get(figure) ?? []), value]);
}

async function traffic(context: BenchContext, sides: readonly Side[], key: SshKey): Promise<void> {
  const guests = new Map<Side, Guest>();
  for (const side of sides) guests.set(side, await startGuest(side));
  for (let round = 0; round <= context.runs; round++) {
    for (const job of JOBS) {
      for (const [side, guest] of guests) {
        const host = job.mode === 'dns' ? '10.0.2.3' : OUTSIDE;
        const cpu_before = cpuSeconds(guest.pid);
        const command = `perl -e '${PERL}' ${job.mode} ${host} ${job.count}`;
        const seconds = Number(await ssh(guest.target, command, { key, signal: context.signal }));
        const cpu = cpuSeconds(guest.pid) - cpu_before;
        const value = job.of(seconds);
        context.say(
          `round ${round}: ${side.name} ${job.figure} ${value.toFixed(2)} ${job.unit}, ${cpu.toFixed(2)} s cpu`,
        );
        if (round === 0) continue;
        note(side, job.figure, value);
        if (job.mode === 'up' || job.mode === 'down')
          note(side, `cpu_per_gib_${job.mode}`, (cpu * 1024) / MIB);
      }
    }
  }
  for (const [side, { pid }] of guests) note(side, 'memory', residentMib(pid));
}

async function startGuest({ installation }: Side): Promise<Guest> {
  const { api, data_dir } = installation;
  const { id } = await api.createInstance('network');
  await api.startVm(id);
  await api.untilRunning(id);
  const vm = findOrphans(pathsIn(data_dir).vms).find((each) => each.instance_id === id);
  if (!vm) throw new Error('its QEMU is not found');
  return { target: await api.ssh(id), pid: vm.identity.pid };
}

/** Without a template (the first of its size), from it, and resumed. */
async function starts(context: BenchContext, sides: readonly Side[], key: SshKey): Promise<void> {
  for (const { installation } of sides) await untilTemplate(installation, context);
  for (let round = 0; round <= context.runs; round++) {
    for (const side of sides) {
      const { api } = side.installation;
      const { id } = await api.createInstance(`start-${round}`);
      const timed = async (figure: string) => {
        const began_ms = performance.now();
        await api.startVm(id);
        await api.untilRunning(id);
        await ssh(await api.ssh(id), 'true', { key, signal: context.signal });
        const seconds = (performance.now() - began_ms) / 1000;
        context.say(`round ${round}: ${side.name} ${figure} ${seconds.toFixed(2)} s`);
        if (round > 0) note(side, figure, seconds);
      };
      await timed('first_ssh_true_from_template');
      await api.suspendVm(id);
      await timed('first_ssh_true_resumed');
      await api.deleteInstance(id);
    }
  }
}

async function untilTemplate({ log_path }: Installation, { signal }: BenchContext): Promise<void> {
  const deadline_ms = performance.now() + TEMPLATE_MS;
  while (!readFileSync(log_path, 'utf8').includes('a template was made')) {
    if (performance.now() > deadline_ms) throw new Error('no template is made');
    if (!(await pause(100, signal))) signal.throwIfAborted();
  }
}

function figures([tap, user]: readonly Side[]): readonly Measured[] {
  if (!tap || !user) return [];
  const units = new Map<string, string>(JOBS.map(({ figure, unit }) => [figure, unit]));
  const unitOf = (figure: string) => units.get(figure) ?? (figure === 'memory' ? 'MiB' : 's');
  return [...tap.values].map(([figure, values]) =>
    measured({
      ...{ bench: 'network', figure, unit: unitOf(figure), values, beside: user.name, remark: '' },
      beside_values: user.values.get(figure) ?? [],
    }),
  );
}

/** Of all its threads. */
function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
}

function residentMib(pid: number): number {
  return Number(/^VmRSS:\s+([0-9]+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'latin1'))?.[1]) / 1024;
}

export const networkBench: Bench = {
  name: 'network',
  summary:
    'throughput, latency, connections, processor time and starts with a TAP device, beside QEMU’s user network',
  run,
};
