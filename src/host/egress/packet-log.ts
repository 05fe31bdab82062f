/**
 * Reads which packets the rules refused, from the kernel's log (NFLOG, over netlink), and passes on their destinations.
 * Node has no netlink, so tcpdump(8) reads the log and writes the packets as pcap. A log is used because an nftables
 * set of refused destinations would have to be listed again and again.
 */
import { spawn } from 'node:child_process';
import type { Denial } from '../../protocol/egress-proxy-messages.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';

const FILE_HEADER_BYTES = 24;
const PACKET_HEADER_BYTES = 16;
/** tcpdump cuts packets off here: headers are enough. */
const SNAP_BYTES = 256;
const NFLOG_HEADER_BYTES = 4;
const NFLOG_PAYLOAD = 9;

/**
 * As a user that may read the log and no more. It ends with the agent, also a killed one: the kernel lets one program read a log. tcpdump
 * would change its user, and so lose that signal, if it began as root.
 */
const UNPRIVILEGED: readonly string[] = [
  ...['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', '--no-new-privs'],
  // The packaged service lacks the other capabilities, and may not change its bounding set.
  ...['--inh-caps=-all,+net_admin', '--ambient-caps=+net_admin', '--pdeathsig=KILL', '--'],
];

/** Splits tcpdump's output into destinations. Pure. */
class PacketReader {
  #waiting = Buffer.alloc(0);
  #skipped_header = false;

  /** @throws RangeError when it is no pcap of tcpdump */
  read(chunk: Buffer): Denial[] {
    this.#waiting = Buffer.concat([this.#waiting, chunk]);
    const found: Denial[] = [];
    if (!this.#skipped_header) {
      if (this.#waiting.length < FILE_HEADER_BYTES) return found;
      if (this.#waiting.readUInt32LE(0) !== 0xa1b2c3d4) throw new RangeError('not a pcap file');
      this.#waiting = this.#waiting.subarray(FILE_HEADER_BYTES);
      this.#skipped_header = true;
    }
    while (this.#waiting.length >= PACKET_HEADER_BYTES) {
      const length = this.#waiting.readUInt32LE(8);
      if (length > 65_536) throw new RangeError('a packet is too long');
      if (this.#waiting.length < PACKET_HEADER_BYTES + length) break;
      const packet = this.#waiting.subarray(PACKET_HEADER_BYTES, PACKET_HEADER_BYTES + length);
      this.#waiting = this.#waiting.subarray(PACKET_HEADER_BYTES + length);
      const denial = destinationIn(packet);
      if (denial) found.push(denial);
    }
    return found;
  }
}

/** Of one NFLOG record; null: none that can be shown. */
function destinationIn(record: Buffer): Denial | null {
  for (let at = NFLOG_HEADER_BYTES; at + 4 <= record.length; ) {
    const length = record.readUInt16LE(at);
    const type = record.readUInt16LE(at + 2);
    if (length < 4) return null;
    if (type === NFLOG_PAYLOAD) return destinationOf(record.subarray(at + 4, at + length));
    at += Math.ceil(length / 4) * 4;
  }
  return null;
}

const TCP = 6;
const UDP = 17;

function destinationOf(packet: Buffer): Denial | null {
  if (packet.length < 20 || (packet[0] ?? 0) >> 4 !== 4) return null;
  const header = ((packet[0] ?? 0) & 0x0f) * 4;
  const protocol = packet[9];
  const has_port = (protocol === TCP || protocol === UDP) && packet.length >= header + 4;
  return {
    guest: packet.subarray(12, 16).join('.'),
    name: null,
    address: packet.subarray(16, 20).join('.'),
    port: has_port ? packet.readUInt16BE(header + 2) : null,
  };
}

export interface PacketLogOptions {
  /** A path to enter by nsenter(1); null: this namespace. */
  readonly namespace: string | null;
  readonly group: number;
  readonly log: Log;
  readonly takeDenial: (denial: Denial) => void;
}

/** Reads until `signal` aborts. */
export async function runPacketLog(options: PacketLogOptions, signal: AbortSignal): Promise<void> {
  for (let failures = 0; !signal.aborted; failures++) {
    const problem = await readOnce(options, signal);
    if (signal.aborted) return;
    if (failures === 3) options.log.warn({ problem }, 'denied packets are not recorded');
    await pause(backoffMs(failures, 100, 10_000), signal);
  }
}

/** Why it ended. */
async function readOnce(
  { namespace, group, takeDenial }: PacketLogOptions,
  signal: AbortSignal,
): Promise<string> {
  const enter = namespace === null ? [] : ['nsenter', `--net=${namespace}`, '--'];
  const dump = [
    ...['tcpdump', '-i', `nflog:${group}`, '-s', String(SNAP_BYTES)],
    ...['-U', '--immediate-mode', '-w', '-'],
  ];
  const [program = '', ...args] = [...enter, ...UNPRIVILEGED, ...dump];
  const child = spawn(program, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    signal,
    killSignal: 'SIGKILL',
  });
  const reader = new PacketReader();
  const { promise, resolve } = Promise.withResolvers<string>();
  let said = '';
  child.stderr.on('data', (text: Buffer) => {
    said = (said + text.toString('utf8')).slice(-500);
  });
  child.stdout.on('data', (chunk: Buffer) => {
    try {
      for (const denial of reader.read(chunk)) takeDenial(denial);
    } catch {
      child.kill('SIGKILL');
    }
  });
  child.once('error', (error) => resolve(error.message));
  child.once('close', () => resolve(said.trim()));
  return promise;
}
