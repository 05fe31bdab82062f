/**
 * The header fields of a request that reach a guest's port. A guest is whoever controls it, so it gets no credential of Berth or E2B;
 * all other fields are the caller's and the guest's own. Pure.
 */

/** In these, E2B's programs send credentials; the others are of one connection. */
const WITHHELD = [
  'x-api-key',
  'x-access-token',
  'e2b-traffic-access-token',
  'proxy-authorization',
  'connection',
];
const BERTHS_TOKEN = /\bberth_[a-z]+_[0-9A-Za-z]{20}/;
const BERTHS_COOKIE = /^[\s=]*(?:__Host-|__Secure-)?berth[-_]/i;

/** Names and values by turns. `connection`: what becomes of the connection. */
export function fieldsForGuest(raw: readonly string[], connection: 'close' | 'upgrade'): string[] {
  const fields: string[] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const [name = '', value = ''] = [raw[at], raw[at + 1]];
    const lower = name.toLowerCase();
    if (WITHHELD.includes(lower) || (lower !== 'cookie' && BERTHS_TOKEN.test(value))) continue;
    if (lower !== 'cookie') {
      fields.push(name, value);
      continue;
    }
    const theirs = value.split(';').filter((each) => !BERTHS_COOKIE.test(each) && !BERTHS_TOKEN.test(each));
    if (theirs.length > 0) fields.push(name, theirs.join(';').trim());
  }
  return [...fields, 'Connection', connection];
}
