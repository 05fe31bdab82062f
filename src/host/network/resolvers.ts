/** The resolvers that guests with TAP devices can use. */
import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { parseResolvers } from './user-network-rules.ts';

/** The second has the resolvers of systemd-resolved, which itself listens on the loopback only. */
const FILES = ['/etc/resolv.conf', '/run/systemd/resolve/resolv.conf'];

/** The host's IPv4 resolvers that a packet can be sent to; empty: there is none, and guests have no DNS. */
export function guestResolvers(files: readonly string[] = FILES): string[] {
  for (const path of files) {
    const found = resolversOf(path).filter((address) => isIP(address) === 4 && !address.startsWith('127.'));
    if (found.length > 0) return found;
  }
  return [];
}

/** The host's resolvers, for the host's own processes. */
export function hostResolvers(): string[] {
  return resolversOf('/etc/resolv.conf');
}

function resolversOf(path: string): string[] {
  try {
    return parseResolvers(readFileSync(path, 'utf8'));
  } catch {
    return [];
  }
}
