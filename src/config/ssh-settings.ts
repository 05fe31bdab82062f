/** The settings of SSH addresses: their names, and where an ingress listens for each. */
import type { SshListen } from '../shared/ssh-listen.ts';
import { Expected, isHost } from './settings.ts';

const MOST_NAMES = 64;

/** Parts between commas, without spaces around them. */
function partsOf(text: string): string[] {
  return text.split(',').map((part) => part.trim());
}

/** The names of SSH addresses, as they were written. */
export function parseSshHosts(text: string): readonly string[] {
  const hosts = partsOf(text);
  const distinct = new Set(hosts.map((host) => host.toLowerCase()));
  if (hosts.length > MOST_NAMES || distinct.size < hosts.length || !hosts.every(isHost)) {
    throw new Expected(
      `a host name or an IP address, or at most ${MOST_NAMES} different ones separated by commas`,
    );
  }
  return hosts;
}

export function parseSshListen(text: string): SshListen {
  if (isHost(text)) return { every: text, by_name: null };
  const pairs = partsOf(text).map((part) => part.split('='));
  const by_name = new Map(pairs.map(([name = '', address = '']) => [name, address]));
  const are_pairs = pairs.every((pair) => pair.length === 2 && pair.every(isHost));
  if (!are_pairs || by_name.size < pairs.length || pairs.length > MOST_NAMES) {
    throw new Expected(
      'an address such as 0.0.0.0, or NAME=ADDRESS pairs separated by commas, such as a.example.org=10.0.0.5,b.example.org=10.0.0.6',
    );
  }
  return { every: null, by_name };
}
