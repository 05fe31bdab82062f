/**
 * Lists the names of all settings, and defines a parser for each kind of value: addresses, networks, URLs, limits and
 * others. A parser returns the value, or throws {@link Expected} with a description of a valid one. Pure.
 */
import { isIP } from 'node:net';
import { nearest } from '../shared/nearest.ts';
import { type Limit, parseLimit, QUOTA_DEFAULTS, QUOTAS, type QuotaLimits } from '../shared/quotas.ts';
import { serverUrls } from '../shared/setting-values.ts';
import type { Reader } from './config.ts';

export const SETTINGS = [
  'BERTH_DATA_DIR',
  'BERTH_LISTEN',
  'BERTH_PUBLIC_URL',
  'BERTH_HOSTS',
  'BERTH_TLS_CERT',
  'BERTH_TLS_KEY',
  'BERTH_TRUSTED_PROXIES',
  'BERTH_CONNECTIONS_PER_ADDRESS',
  'BERTH_SSH_HOST',
  'BERTH_SSH_PORTS',
  'BERTH_SSH_LISTEN',
  'BERTH_HTTP_LISTEN',
  'BERTH_HTTP_DOMAIN',
  'BERTH_HTTP_TLS_CERT',
  'BERTH_HTTP_TLS_KEY',
  'BERTH_HTTP_URL',
  'BERTH_ADMIN_EMAIL',
  'BERTH_ADMIN_PASSWORD',
  'DATABASE_URL',
  'BERTH_S3_BUCKET',
  'BERTH_S3_ENDPOINT',
  'BERTH_DISK_ENCRYPTION',
  'BERTH_ACCEL',
  'BERTH_FAST_START',
  'BERTH_GUEST_NETWORK',
  'BERTH_SECRET_KEY',
  'BERTH_SIGNUPS',
  'BERTH_OIDC_ISSUER',
  'BERTH_OIDC_CLIENT_ID',
  'BERTH_OIDC_CLIENT_SECRET',
  'BERTH_OIDC_GROUPS',
  'BERTH_PASSWORD_LOGIN',
  'BERTH_QUOTA_DEFAULTS',
  'BERTH_RATE_LIMITS',
  'BERTH_SMTP_URL',
  'BERTH_WEBHOOK_ALLOW_CIDRS',
  'BERTH_METRICS_LISTEN',
  'BERTH_HOST_LEASE_SECONDS',
  'BERTH_REMOVAL_DELAY_HOURS',
  'BERTH_HOSTS_LISTEN',
  'BERTH_HOSTS_URL',
  'BERTH_CONTROL_PLANE',
  'BERTH_HOST_TOKEN_FILE',
  'BERTH_INGRESS_TOKEN_FILE',
  'BERTH_LOG_LEVEL',
  'OTEL_EXPORTER_OTLP_ENDPOINT',
  'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT',
  'OTEL_EXPORTER_OTLP_HEADERS',
  'OTEL_EXPORTER_OTLP_PROTOCOL',
  'OTEL_EXPORTER_OTLP_TIMEOUT',
  'OTEL_EXPORTER_OTLP_COMPRESSION',
  'OTEL_TRACES_SAMPLER',
  'OTEL_TRACES_SAMPLER_ARG',
  'OTEL_RESOURCE_ATTRIBUTES',
] as const;
export type Setting = (typeof SETTINGS)[number];

/** Messages never contain the values of these. */
const HIDDEN: ReadonlySet<string> = new Set<Setting>([
  'BERTH_ADMIN_PASSWORD',
  'BERTH_OIDC_CLIENT_SECRET',
  'DATABASE_URL',
  'BERTH_SECRET_KEY',
  'BERTH_SMTP_URL',
  'OTEL_EXPORTER_OTLP_HEADERS',
]);

/** Variables of the command line: not settings, but not mistakes either. */
const OF_THE_COMMAND_LINE: readonly string[] = ['BERTH_URL', 'BERTH_API_KEY', 'BERTH_PROFILE'];

/** Prefix of the tests' variables. */
const TEST_PREFIX = 'BERTH_TEST_';

/** Thrown for an invalid value; the message describes a valid one. */
export class Expected extends Error {
  override name = 'Expected';
}

export interface Address {
  readonly host: string;
  readonly port: number;
}

export interface Cidr {
  readonly address: string;
  readonly prefix: number;
  readonly family: 'ipv4' | 'ipv6';
}

export interface PortRange {
  readonly first: number;
  readonly last: number;
}

export function problemLine(name: string, value: string, expected: string): string {
  const shown = HIDDEN.has(name) ? 'its value (not shown)' : JSON.stringify(value);
  return `${name}: ${shown} is not valid; expected ${expected}`;
}

function parsePort(text: string): number | undefined {
  const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : 0;
  return port >= 1 && port <= 65_535 ? port : undefined;
}

const HOST_NAME = /^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$/i;

export function isHost(text: string): boolean {
  // A name of only digits and dots is a mistyped address.
  return isIP(text) !== 0 || (HOST_NAME.test(text) && !/^[0-9.]+$/.test(text));
}

export function parseAddress(text: string): Address {
  const match = /^(?:\[([^\]]+)\]|([^:[\]]+)):([^:]+)$/.exec(text);
  const host = match?.[1] ?? match?.[2] ?? '';
  const port = parsePort(match?.[3] ?? '');
  const bracketed = match?.[1] !== undefined;
  const fits = isHost(host) && bracketed === (isIP(host) === 6);
  // It becomes part of URLs, which allow no scope (fe80::1%eth0) and no last label like a number (l27.0.0.1).
  if (port === undefined || !fits || !URL.canParse(`http://${text}`)) {
    throw new Expected('HOST:PORT such as 127.0.0.1:7400 or [::1]:7400, with a port from 1 to 65535');
  }
  return { host, port };
}

const MOST_HOSTS = 64;

/** Names and addresses in lower case, without ports and brackets. */
export function parseHosts(text: string): readonly string[] {
  const hosts = text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
    .map(hostOf);
  if (hosts.length > MOST_HOSTS || !hosts.every(isHost)) {
    throw new Expected(
      `at most ${MOST_HOSTS} host names or addresses separated by commas, such as berth.internal,10.0.0.7`,
    );
  }
  return hosts;
}

/** In a browser's spelling; empty when it is not a host name. */
function hostOf(text: string): string {
  const url = URL.parse(`http://${isIP(text) === 6 ? `[${text}]` : text}`);
  const is_authority = /^[^/?#@\\]+$/.test(text);
  return is_authority && url ? url.hostname.replace(/^\[(.*)\]$/, '$1') : '';
}

function parseCidr(text: string): Cidr {
  const [address = '', prefix, ...rest] = text.split('/');
  const version = isIP(address);
  const most = version === 6 ? 128 : 32;
  const bits = prefix === undefined ? most : /^[0-9]{1,3}$/.test(prefix) ? Number(prefix) : 999;
  if (version === 0 || address.includes('%') || rest.length > 0 || bits > most) {
    throw new Expected('addresses or CIDRs separated by commas, such as 10.0.0.0/8,fd00::/8');
  }
  return { address, prefix: bits, family: version === 6 ? 'ipv6' : 'ipv4' };
}

/** At most 256 of them. */
export function parseCidrs(text: string): readonly Cidr[] {
  const parts = text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
  if (parts.length > 256) throw new Expected('at most 256 addresses or CIDRs');
  return parts.map(parseCidr);
}

export function parsePorts(text: string): PortRange {
  const match = /^([0-9]+)-([0-9]+)$/.exec(text);
  const first = parsePort(match?.[1] ?? '');
  const last = parsePort(match?.[2] ?? '');
  if (first === undefined || last === undefined || first > last) {
    throw new Expected('FIRST-LAST such as 22000-22999, ports from 1 to 65535, the first not above the last');
  }
  return { first, last };
}

function parseUrl(text: string, protocols: readonly string[], expected: string): URL {
  const url = URL.parse(text);
  if (url === null || !protocols.includes(url.protocol) || text.trim() !== text) throw new Expected(expected);
  return url;
}

/** The origin, without a trailing slash. */
export function parseOrigin(text: string): string {
  const expected = 'an origin such as https://berth.example.org, without path, query or user';
  const url = parseUrl(text, ['http:', 'https:'], expected);
  if (url.hostname === '' || (url.href !== `${url.origin}/` && url.href !== url.origin)) {
    throw new Expected(expected);
  }
  return url.origin;
}

/** The domain of hostnames, in lower case. */
export function parseDomain(text: string): string {
  if (!isHost(text) || isIP(text) !== 0 || text.length > 180) {
    throw new Expected('a domain such as apps.example.com, of at most 180 characters');
  }
  return text.toLowerCase();
}

export function parseDatabaseUrl(text: string): string {
  if (serverUrls(text) === null) {
    throw new Expected(
      'postgres://USER:PASSWORD@HOST:PORT/DATABASE; several HOST:PORT are separated by commas, and target_session_attrs may only be read-write',
    );
  }
  return text;
}

export function parseSmtpUrl(text: string): string {
  const expected = 'smtp://HOST:PORT or smtps://USER:PASSWORD@HOST:PORT';
  if (parseUrl(text, ['smtp:', 'smtps:'], expected).hostname === '') throw new Expected(expected);
  return text;
}

export function parseEmail(text: string): string {
  if (text.length > 254 || !/^[^\s@<>",;:\\]+@[^\s@<>",;:\\]+$/.test(text)) {
    throw new Expected('an e-mail address such as admin@example.org');
  }
  return text.toLowerCase();
}

/** Counted in code points, as a form field counts characters. */
export function parsePassword(text: string): string {
  const length = [...text].length;
  if (length < 12 || length > 256) throw new Expected(`12 to 256 characters (it has ${length})`);
  return text;
}

/** 32 bytes. */
export function parseSecretKey(text: string): Buffer {
  const bytes = /^[0-9a-f]{64}$/i.test(text)
    ? Buffer.from(text, 'hex')
    : /^[A-Za-z0-9+/_-]{43}=?$/.test(text)
      ? Buffer.from(text, 'base64')
      : Buffer.alloc(0);
  if (bytes.length !== 32) {
    throw new Expected('32 bytes as 64 hexadecimal digits or as base64 (openssl rand -hex 32 makes one)');
  }
  return bytes;
}

export function parseChoice<const T extends string>(choices: readonly T[]): (text: string) => T {
  return (text) => {
    const found = choices.find((choice) => choice === text);
    if (found === undefined) throw new Expected(`one of ${choices.join(', ')}`);
    return found;
  };
}

/** Requests a minute, and changes an hour. */
export interface RateLimitsConfig {
  readonly principal: number;
  readonly address: number;
  readonly changes: number;
}
export const DEFAULT_RATE_LIMITS: RateLimitsConfig = { principal: 1_200, address: 60, changes: 20_000 };
const MAX_RATE_LIMIT = 1_000_000;

/** `off` is null. A limit that is not named keeps its default. */
export function parseRateLimits(text: string): RateLimitsConfig | null {
  if (text === 'on') return DEFAULT_RATE_LIMITS;
  if (text === 'off') return null;
  const given: Record<string, number> = {};
  for (const part of text.split(',')) {
    const [, name = '', digits = ''] = /^\s*(principal|address|changes)=([0-9]{1,7})\s*$/.exec(part) ?? [];
    const limit = Number(digits);
    if (name in given || limit < 1 || limit > MAX_RATE_LIMIT) {
      throw new Expected(
        `on, off, or limits such as principal=1200,address=60,changes=20000 (one or more, 1 to ${MAX_RATE_LIMIT}; principal and address are requests a minute, changes are of an hour)`,
      );
    }
    given[name] = limit;
  }
  return { ...DEFAULT_RATE_LIMITS, ...given };
}

export const DEFAULT_CONNECTIONS_PER_ADDRESS = 2_000;
const MAX_CONNECTIONS_PER_ADDRESS = 1_000_000;

export function parseConnections(text: string): number {
  const count = /^[0-9]{1,7}$/.test(text) ? Number(text) : 0;
  if (count < 1 || count > MAX_CONNECTIONS_PER_ADDRESS)
    throw new Expected(`a whole number from 1 to ${MAX_CONNECTIONS_PER_ADDRESS}`);
  return count;
}

/** A quota that is not named keeps its default. */
export function parseQuotas(text: string): QuotaLimits {
  const given: Record<string, Limit> = {};
  for (const part of text.split(',')) {
    const [name = '', value = '', ...more] = part.trim().split('=');
    const limit = parseLimit(value);
    const known = QUOTAS.some((quota) => quota === name);
    if (!known || limit === undefined || more.length > 0 || name in given) {
      throw new Expected(
        `quotas such as instances=20,cpus=unlimited: each once, a whole number or unlimited; there are ${QUOTAS.join(', ')}`,
      );
    }
    given[name] = limit;
  }
  return { ...QUOTA_DEFAULTS, ...given };
}

/** Whole seconds, as milliseconds. */
export function parseLease(text: string): number {
  const seconds = /^[0-9]{1,4}$/.test(text) ? Number(text) : 0;
  if (seconds < 3 || seconds > 3_600) throw new Expected('whole seconds from 3 to 3600');
  return seconds * 1_000;
}

/** Whole hours, as milliseconds. Hosts may read by an older head for up to an hour. */
export function parseRemovalDelay(text: string): number {
  const hours = /^[0-9]{1,4}$/.test(text) ? Number(text) : 0;
  if (hours < 1 || hours > 8_760) throw new Expected('whole hours from 1 to 8760');
  return hours * 3_600_000;
}

export function parseHttpsOrigin(text: string): string {
  const origin = parseOrigin(text);
  if (!origin.startsWith('https:')) throw new Expected('an https origin such as https://10.0.0.1:7500');
  return origin;
}

/** A line for each unknown variable that looks like a setting. */
export function unknownSettings(names: Iterable<string>): string[] {
  const known: readonly string[] = SETTINGS;
  const unknown = [...names].filter(
    (name) =>
      name.startsWith('BERTH_') &&
      !name.startsWith(TEST_PREFIX) &&
      !known.includes(name) &&
      !OF_THE_COMMAND_LINE.includes(name),
  );
  return unknown.sort().map((name) => {
    const meant = nearest(name, known);
    return meant === undefined
      ? `${name} is unknown; the settings are listed in docs/settings.md`
      : `${name} is unknown; did you mean ${meant}?`;
  });
}

const SAMPLERS = [
  ...(['always_on', 'always_off', 'traceidratio'] as const),
  ...(['parentbased_always_on', 'parentbased_always_off', 'parentbased_traceidratio'] as const),
] as const;

export interface TracesConfig {
  readonly sampler: (typeof SAMPLERS)[number];
  /** Of new traces; for samplers with a ratio. */
  readonly ratio: number;
}

const ENDPOINTS = ['OTEL_EXPORTER_OTLP_ENDPOINT', 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] as const;
/** What else the exporter reads, and silently ignores when it is malformed. */
const CHECKED: readonly (readonly [Setting, (text: string) => unknown])[] = [
  ['OTEL_EXPORTER_OTLP_HEADERS', parsePairs],
  ['OTEL_EXPORTER_OTLP_PROTOCOL', parseChoice(['http/protobuf'])],
  ['OTEL_EXPORTER_OTLP_TIMEOUT', parseMilliseconds],
  ['OTEL_EXPORTER_OTLP_COMPRESSION', parseChoice(['none', 'gzip'])],
  ['OTEL_RESOURCE_ATTRIBUTES', parsePairs],
];

/** Null: no traces. Without an endpoint the other variables, which may be meant for other programs, are not looked at. */
export function readTraces(reader: Reader): TracesConfig | null {
  const off = reader.text('OTEL_SDK_DISABLED') === 'true' || reader.text('OTEL_TRACES_EXPORTER') === 'none';
  if (off || ENDPOINTS.every((name) => reader.text(name) === null)) return null;
  for (const name of ENDPOINTS) reader.read(name, parseEndpoint, null);
  for (const [name, parse] of CHECKED) reader.read(name, parse, null);
  return {
    sampler: reader.read('OTEL_TRACES_SAMPLER', parseChoice(SAMPLERS), 'parentbased_always_on'),
    ratio: reader.read('OTEL_TRACES_SAMPLER_ARG', parseRatio, 1),
  };
}

function parseEndpoint(text: string): string {
  const url = URL.parse(text);
  if (url === null || !['http:', 'https:'].includes(url.protocol) || url.username !== '')
    throw new Expected('the URL of a collector, such as http://127.0.0.1:4318');
  return text;
}

/** As the specification has it: values are percent-encoded. */
function parsePairs(text: string): string {
  const wrong = text.split(',').some((pair) => !/^\s*[^\s=,;]+\s*=[^,;]*$/.test(pair) || !isEncoded(pair));
  if (wrong) throw new Expected('pairs such as name=value,other=value, with values percent-encoded');
  return text;
}

function isEncoded(text: string): boolean {
  try {
    decodeURIComponent(text);
    return true;
  } catch {
    return false;
  }
}

function parseMilliseconds(text: string): number {
  const ms = /^[0-9]{1,6}$/.test(text) ? Number(text) : 0;
  if (ms < 1) throw new Expected('milliseconds, from 1 to 999999');
  return ms;
}

function parseRatio(text: string): number {
  const ratio = /^[0-9]*\.?[0-9]+$/.test(text) ? Number(text) : -1;
  if (ratio < 0 || ratio > 1) throw new Expected('a ratio from 0 to 1, such as 0.1');
  return ratio;
}
