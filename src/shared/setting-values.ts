/**
 * Parses the values of two settings that not only `config/` reads: splits DATABASE_URL into one URL for each server,
 * and finds where an ingress listens for the SSH addresses of a host name (BERTH_SSH_LISTEN).
 */

const FORM = /^(postgres(?:ql)?:\/\/(?:[^@/?#\s]*@)?)([^@/?#\s]*)(\/[^?#\s]+(?:\?[^#\s]*)?)$/;
const ATTRIBUTES = 'target_session_attrs';
const WRITABLE = [null, 'read-write', 'primary'];
const MAX_SERVERS = 16;

/** An URL for each server, or null: the text is malformed. */
export function serverUrls(text: string): readonly string[] | null {
  const [whole, before, hosts, after] = FORM.exec(text) ?? [];
  if (whole === undefined || hosts === undefined) return null;
  const urls: string[] = [];
  for (const host of hosts.split(',')) {
    const one = `${before}${host}${after}`;
    // Without a host, which pg takes from the parameter `host`, a URL cannot name a user.
    const url = URL.parse(host === '' ? `${before}localhost${after}` : one);
    if (url === null || (host === '' && hosts !== '')) return null;
    const { searchParams: parameters } = url;
    if (!WRITABLE.includes(parameters.get(ATTRIBUTES))) return null;
    if (hosts.includes(',') && (parameters.has('host') || parameters.has('port'))) return null;
    const given = parameters.has(ATTRIBUTES);
    parameters.delete(ATTRIBUTES);
    urls.push(given && host !== '' ? url.href : one);
  }
  return urls.length > MAX_SERVERS ? null : urls;
}

/** Where an ingress listens for the SSH addresses of each host name (`BERTH_SSH_LISTEN`). */
export interface SshListen {
  /** For every name; null: see `by_name`. */
  readonly every: string | null;
  /** The names that are served, each with its address; null: every name, at the address that it resolves to. */
  readonly by_name: ReadonlyMap<string, string> | null;
}

export const LISTEN_AT_NAMES: SshListen = { every: null, by_name: null };

/** Null: the name is not served here. */
export function listenAddress({ every, by_name }: SshListen, name: string): string | null {
  if (every !== null) return every;
  return by_name === null ? name : (by_name.get(name) ?? null);
}
