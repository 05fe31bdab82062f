/**
 * DATABASE_URL in libpq's form: `postgres://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE?target_session_attrs=read-write`. Of
 * several servers, one takes writes; only that one is ever used, so the parameter may be absent.
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
