/** Whether SSH ports of instances are among those that Linux takes for outgoing connections (net.ipv4.ip_local_port_range). */
import { readFileSync } from 'node:fs';
import type { WeakSetting } from '../config/weak-settings.ts';

interface PortRange {
  readonly first: number;
  readonly last: number;
}

export function outgoingPorts(ssh: PortRange, outgoing: PortRange | null = rangeHere()): WeakSetting[] {
  if (outgoing === null || ssh.last < outgoing.first || ssh.first > outgoing.last) return [];
  const found = `${ssh.first}-${ssh.last} has ports that Linux takes for outgoing connections (${outgoing.first}-${outgoing.last}): an instance's port is closed while one has it`;
  const next = `BERTH_SSH_PORTS below ${outgoing.first}, or net.ipv4.ip_local_port_range above it, on each machine with an ingress`;
  return [{ check: 'SSH ports', found, next }];
}

/** Null where it is not shown. */
function rangeHere(): PortRange | null {
  try {
    const words = readFileSync('/proc/sys/net/ipv4/ip_local_port_range', 'utf8').trim().split(/\s+/);
    return { first: Number(words[0]), last: Number(words[1]) };
  } catch {
    return null;
  }
}
