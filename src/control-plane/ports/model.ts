/**
 * Defines the limits of HTTP ports, and computes their hostnames, URLs, TXT records, request rates and the times of
 * checks. Also converts rows of ports to the form in which the API shows them. Pure.
 */
import { isIP } from 'node:net';
import { rfc3339 } from '../../shared/clock.ts';
import { idnaName } from '../../shared/egress-policy.ts';
import type { HostnameRow, PortRow } from './store.ts';

export const PORTS_AN_INSTANCE = 20;
export const PORT_TICKET_SECONDS = 60;
export const COOKIE_SECONDS = 12 * 3600;

/** Where clients reach the HTTP ports of instances. */
export interface HttpEndpoint {
  /** The hostnames of ports are below it; in lower case. */
  readonly domain: string;
  readonly scheme: 'http' | 'https';
  /** Null: the scheme's own. */
  readonly port: number | null;
}

export function urlOf({ scheme, port }: HttpEndpoint, hostname: string): string {
  return `${scheme}://${hostname}${port === null ? '' : `:${port}`}`;
}

export function hostnameOf({ domain }: Pick<HttpEndpoint, 'domain'>, label: string): string {
  return `${label}.${domain}`;
}

const LABEL_MAX = 63;
const BASE32 = '0123456789abcdefghjkmnpqrstvwxyz';

/** `<instance name>-<8 random characters>`. @param random 8 bytes */
export function newLabel(instance_name: string, random: Uint8Array): string {
  const suffix = Array.from(random.subarray(0, 8), (byte) => BASE32.charAt(byte & 31)).join('');
  const name = instance_name.slice(0, LABEL_MAX - 1 - suffix.length).replace(/-+$/, '');
  return `${name}-${suffix}`;
}

const DNS_LABEL = /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/;

/** A custom hostname in lower case and ASCII, or why it cannot be one. `own`: Berth's own host names. */
export function readHostname(
  text: string,
  domain: string,
  own: readonly string[],
): { readonly hostname: string } | { readonly issue: string } {
  const lower = text.toLowerCase();
  // An ASCII name is taken as it is: the URL standard would read 1.2.3 or 0x7f.1 as an address.
  const hostname = /^[\x20-\x7e]*$/.test(lower) ? lower : idnaName(text);
  const labels = hostname.split('.');
  if (isIP(text) !== 0 || /^(\d+|0x[0-9a-f]*)$/.test(labels.at(-1) ?? ''))
    return { issue: 'must be a name, not an IP address' };
  const is_name = labels.length >= 2 && labels.every((label) => DNS_LABEL.test(label));
  if (!is_name || hostname.includes('_') || hostname.length > 245)
    return { issue: 'must be a full host name such as app.example.com, without scheme, port or wildcard' };
  const reserved = [domain, 'localhost', ...own.filter((each) => isIP(each) === 0)];
  const under = reserved.find((each) => hostname === each || hostname.endsWith(`.${each}`));
  if (under !== undefined) return { issue: `must not be ${under} or a name below it: those are Berth's own` };
  return { hostname };
}

/** The TXT record that proves control of a hostname. */
export function txtRecord(hostname: string, proof: string): { name: string; value: string } {
  return { name: `_berth.${hostname}`, value: `berth-port=${proof}` };
}

const DAY_S = 86_400;
/** The first checks of a pending hostname follow each other this fast. */
const SOON_S = 5;
const PENDING_MOST_S = 3600;

/** Seconds until the next check: daily for an active hostname; for a pending one ever more rarely. */
export function nextCheckS(active: boolean, age_s: number): number {
  return active ? DAY_S : Math.min(PENDING_MOST_S, Math.max(SOON_S, Math.floor(age_s / 10)));
}

const MINUTE_MS = 60_000;

export interface RequestCounts {
  /** The beginning of the minute of `requests`. */
  readonly minute: Date;
  readonly requests: number;
  readonly previous_requests: number;
}

/** Requests in the last 60 s, from the counts of two calendar minutes. */
export function requestsPerMinute(counts: RequestCounts | null, now_ms: number): number {
  if (counts === null) return 0;
  const into_ms = now_ms - counts.minute.getTime();
  const share = (count: number, of_ms: number) =>
    Math.round(count * Math.min(1, Math.max(0, of_ms / MINUTE_MS)));
  if (into_ms < MINUTE_MS) return counts.requests + share(counts.previous_requests, MINUTE_MS - into_ms);
  return share(counts.requests, 2 * MINUTE_MS - into_ms);
}

export function hostnameView({ hostname, proof, active, checked_at, problem }: HostnameRow) {
  return {
    hostname,
    status: active ? ('active' as const) : ('pending' as const),
    txt: txtRecord(hostname, proof),
    checked_at: checked_at && rfc3339(new Date(checked_at)),
    problem,
  };
}

export function portView(endpoint: HttpEndpoint, row: PortRow) {
  const hostname = hostnameOf(endpoint, row.label);
  const { minute, requests, previous_requests } = row;
  const counts =
    minute === null ? null : { minute, requests: requests ?? 0, previous_requests: previous_requests ?? 0 };
  return {
    id: row.id,
    instance_id: row.instance_id,
    port: row.port,
    access: row.access,
    hostname,
    url: urlOf(endpoint, hostname),
    hostnames: row.hostnames.map(hostnameView),
    requests_per_minute: requestsPerMinute(counts, Date.now()),
    last_error: row.last_error,
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
  };
}

/** For events and the audit log: without what changes by itself. */
export function portRecord(endpoint: HttpEndpoint, row: PortRow) {
  const { requests_per_minute: _rate, last_error: _error, ...record } = portView(endpoint, row);
  return record;
}
