/**
 * Checks the HTTP requests that Berth relays. It refuses a request that two programs could read differently (request
 * smuggling), and knows the hop-by-hop fields, which are not passed on. Node's parsers already refuse most of these
 * requests (several lengths, folded lines, bare line feeds, fields that HTTP/2 forbids); a test in test/ingress lists
 * both kinds. Pure.
 */

/** The sentence's subject is the request. */
export class AmbiguousRequest extends Error {
  override name = 'AmbiguousRequest';
}

function ambiguous(problem: string): AmbiguousRequest {
  return new AmbiguousRequest(problem);
}

export interface RequestHead {
  readonly method: string;
  /** As sent: origin-form, absolute-form or `*`. */
  readonly target: string;
  readonly version: string;
  /** Names and values by turns, as sent; without those of HTTP/2 that begin with a colon. */
  readonly raw: readonly string[];
  /** HTTP/2's `:authority`. */
  readonly authority: string | null;
}

export interface CheckedRequest {
  /** As sent. */
  readonly host: string;
  /** In lower case, without port and final dot. */
  readonly hostname: string;
  /** What the client sends after the headers: nothing, a body of known length, or chunks. */
  readonly body: 'none' | 'length' | 'chunks';
}

const HOST = /^([A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?$/;
/** Whatever `Connection` names is removed, but without these a request is another one. */
const NEVER_NAMED: ReadonlySet<string> = new Set(['host', 'content-length', 'transfer-encoding', 'trailer']);
const ONLY_HTTP1: ReadonlySet<string> = new Set([
  ...['connection', 'keep-alive', 'proxy-connection', 'transfer-encoding', 'upgrade'],
]);

/** @throws AmbiguousRequest */
export function checkRequest(head: RequestHead): CheckedRequest {
  const { version, method, raw } = head;
  if (!['1.0', '1.1', '2.0'].includes(version)) throw ambiguous(`its version is HTTP/${version}`);
  if (version === '2.0' && raw.some((name, at) => at % 2 === 0 && ONLY_HTTP1.has(name.toLowerCase())))
    throw ambiguous('it has a field that HTTP/2 does not allow');
  const host = hostOf(head);
  const [, name] = HOST.exec(host) ?? [];
  if (name === undefined) throw ambiguous('its Host is not valid');
  checkTarget(head, host);
  for (const named of tokensOf(raw, 'connection')) {
    if (NEVER_NAMED.has(named)) throw ambiguous(`its Connection field names ${named}`);
  }
  const body = bodyOf(head);
  if (method === 'TRACE' && body !== 'none') throw ambiguous('TRACE has no body');
  return { host, hostname: name.toLowerCase().replace(/\.$/, ''), body };
}

function hostOf({ raw, authority }: RequestHead): string {
  const hosts = valuesOf(raw, 'host');
  if (authority !== null) {
    if (hosts.length > 1 || (hosts[0] !== undefined && hosts[0].toLowerCase() !== authority.toLowerCase()))
      throw ambiguous('its Host is not its :authority');
    return authority;
  }
  const [host] = hosts;
  if (hosts.length !== 1 || host === undefined) {
    throw ambiguous(hosts.length === 0 ? 'it has no Host' : 'it has several Host fields');
  }
  return host;
}

function checkTarget({ method, target }: RequestHead, host: string): void {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (/[\x00-\x20\x7f-\uffff#]/.test(target)) throw ambiguous('its target has characters that none may have');
  if (target.startsWith('/')) return;
  if (target === '*' && method === 'OPTIONS') return;
  const [, authority] = /^https?:\/\/([^/?#]*)/i.exec(target) ?? [];
  if (authority === undefined) throw ambiguous('its target is not valid');
  if (authority.toLowerCase() !== host.toLowerCase()) throw ambiguous('its target names another host');
}

function bodyOf({ raw, version }: RequestHead): CheckedRequest['body'] {
  const codings = valuesOf(raw, 'transfer-encoding');
  const lengths = valuesOf(raw, 'content-length');
  if (lengths.length > 1 || lengths.some((each) => !/^[0-9]{1,15}$/.test(each)))
    throw ambiguous('its Content-Length is not valid');
  if (codings.length === 0) return lengths.length > 0 ? 'length' : 'none';
  if (
    version !== '1.1' ||
    lengths.length > 0 ||
    codings.length > 1 ||
    codings[0]?.toLowerCase() !== 'chunked'
  )
    throw ambiguous('its Transfer-Encoding is not chunked alone');
  return 'chunks';
}

/** The values of a field, as sent. */
export function valuesOf(raw: readonly string[], name: string): string[] {
  const found: string[] = [];
  for (let at = 0; at < raw.length; at += 2) {
    if (raw[at]?.toLowerCase() === name) found.push(raw[at + 1] ?? '');
  }
  return found;
}

/** The members of a field that is a list of tokens, in lower case. */
export function tokensOf(raw: readonly string[], name: string): string[] {
  return valuesOf(raw, name)
    .flatMap((value) => value.split(','))
    .map((each) => each.trim().toLowerCase())
    .filter((each) => each !== '');
}

/** `passes` gets each name in lower case. Fields are names and values by turns. */
export function filterFields(fields: readonly string[], passes: (name: string) => boolean): string[] {
  return fields.filter((_, at) => passes((fields[at - (at % 2)] ?? '').toLowerCase()));
}

/** Fields of one connection (RFC 9110, 7.6.1), beside those that `Connection` names. */
export const HOP_BY_HOP: ReadonlySet<string> = new Set([
  ...['connection', 'keep-alive', 'proxy-connection', 'transfer-encoding', 'upgrade', 'te', 'http2-settings'],
  ...['proxy-authenticate', 'proxy-authorization', 'proxy-authentication-info'],
]);

/** Requests that Node would send in chunks if they said nothing of their length. */
const WITHOUT_BODY: readonly string[] = ['GET', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE', 'CONNECT'];

/** The fields that say where the body of a request by HTTP/1.1 ends. */
export function framingOf(
  method: string,
  raw: readonly string[],
  { body }: Pick<CheckedRequest, 'body'>,
): string[] {
  if (body === 'chunks') return ['Transfer-Encoding', 'chunked'];
  if (body === 'none') return WITHOUT_BODY.includes(method) ? [] : ['Content-Length', '0'];
  return ['Content-Length', valuesOf(raw, 'content-length')[0] ?? '0'];
}

/** For HTTP/2, and for Node's `addTrailers`: names in lower case, the values of one name together. */
export function asRecord(fields: readonly string[]): Record<string, string | string[]> {
  // A field may have any name, also that of a property which all objects have.
  const record = Object.create(null) as Record<string, string | string[]>;
  for (let at = 0; at < fields.length; at += 2) {
    const name = (fields[at] ?? '').toLowerCase();
    const value = fields[at + 1] ?? '';
    const before = record[name];
    record[name] = before === undefined ? value : [before, value].flat();
  }
  return record;
}
