/**
 * Parses environment variables into a {@link Config}, or into a list of all their problems. An empty variable counts as
 * unset. Pure: it opens no file and resolves no name. `launcher/` checks what depends on the machine.
 */
import { resolve } from 'node:path';
import { isId, type OrgId } from '../shared/ids.ts';
import { isLoopback } from '../shared/networks.ts';
import { QUOTA_DEFAULTS, type QuotaLimits } from '../shared/quotas.ts';
import { ROLES, type Role } from '../shared/roles.ts';
import { LISTEN_AT_NAMES, type SshListen } from '../shared/setting-values.ts';
import type { Env } from './env.ts';
import { dataDirProblem } from './paths.ts';
import {
  type Address,
  type Cidr,
  DEFAULT_CONNECTIONS_PER_ADDRESS,
  DEFAULT_RATE_LIMITS,
  Expected,
  isHost,
  type PortRange,
  parseAddress,
  parseChoice,
  parseCidrs,
  parseConnections,
  parseDatabaseUrl,
  parseDomain,
  parseEmail,
  parseHosts,
  parseHttpsOrigin,
  parseLease,
  parseOrigin,
  parsePassword,
  parsePorts,
  parseQuotas,
  parseRateLimits,
  parseRemovalDelay,
  parseSecretKey,
  parseSmtpUrl,
  problemLine,
  type RateLimitsConfig,
  readTraces,
  type Setting,
  type TracesConfig,
  unknownSettings,
} from './settings.ts';

/** The settings of a machine that joins a fleet, as a host or as an ingress. */
export interface JoinConfig {
  readonly control_plane: string;
  readonly token_path: string;
}

export interface Joins {
  readonly join: JoinConfig | null;
  readonly ingress_join: JoinConfig | null;
}

function readJoins(reader: Reader, path: (text: string) => string): Joins {
  const control_plane = reader.read('BERTH_CONTROL_PLANE', parseHttpsOrigin, null);
  const joinWith = (token_path: string | null): JoinConfig | null =>
    control_plane === null || token_path === null ? null : { control_plane, token_path };
  const [host, ingress] = ['BERTH_HOST_TOKEN_FILE', 'BERTH_INGRESS_TOKEN_FILE'] as const;
  const given = [host, ingress].filter((name) => reader.text(name) !== null);
  if (reader.text('BERTH_CONTROL_PLANE') === null) {
    for (const name of given)
      reader.problems.push(`BERTH_CONTROL_PLANE is missing; ${name} is set, and needs it`);
  } else if (given.length === 0) {
    reader.problems.push(
      `${host} is missing; BERTH_CONTROL_PLANE is set, and a host of a fleet needs both (an ingress needs ${ingress})`,
    );
  }
  return {
    join: joinWith(reader.read(host, path, null)),
    ingress_join: joinWith(reader.read(ingress, path, null)),
  };
}

/** Members of the group have the role in the organisation. */
export interface GroupRole {
  readonly group: string;
  readonly org_id: OrgId;
  readonly role: Role;
}

export interface OidcConfig {
  /** Without a trailing slash. */
  readonly issuer: string;
  readonly client_id: string;
  readonly client_secret: string;
  readonly groups: readonly GroupRole[];
}

const MOST_GROUPS = 1_000;

function parseIssuer(text: string): string {
  const url = URL.parse(text);
  const host = url?.hostname.replace(/^\[|\]$/g, '') ?? '';
  const is_safe = url?.protocol === 'https:' || (url?.protocol === 'http:' && isLoopback(host));
  if (!is_safe || url === null || url.search + url.hash + url.username !== '' || /\s|#|\?/.test(text)) {
    throw new Expected(
      "the provider's issuer such as https://id.example.org/realms/main, over https, without query (http only on the loopback)",
    );
  }
  return text.replace(/\/$/, '');
}

/** `group=org_…:role, …`. A group's name may contain everything but a comma. */
function parseGroups(text: string): readonly GroupRole[] {
  const parts = text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
  if (parts.length > MOST_GROUPS) throw new Expected(`at most ${MOST_GROUPS} groups`);
  return parts.map(groupRole);
}

function groupRole(text: string): GroupRole {
  const [, group = '', org_id = '', given = ''] = /^(.+)=(org_[^:=]*):([a-z]+)$/.exec(text) ?? [];
  const role = ROLES.find((each) => each === given);
  if (group === '' || role === undefined || !isId('org', org_id)) {
    throw new Expected(
      `GROUP=ORGANISATION:ROLE separated by commas, such as staff=org_01k5x8m2vq7r4t9wz3b6c8d0ef:member; the roles are ${ROLES.join(', ')}, and berth org quota lists the ids`,
    );
  }
  return { group, org_id, role };
}

/** Reads single settings, and collects their problems. */
export class Reader {
  readonly problems: string[] = [];
  readonly #env: Env;

  constructor(env: Env) {
    this.#env = env;
  }

  text(name: string): string | null {
    return this.#env[name] || null;
  }

  /** The setting's value, or `fallback` when it is unset or invalid (which is recorded). */
  read<T, F>(name: Setting, parse: (text: string) => T, fallback: F): T | F {
    const text = this.text(name);
    if (text === null) return fallback;
    try {
      return parse(text);
    } catch (error) {
      if (!(error instanceof Expected)) throw error;
      this.problems.push(problemLine(name, text, error.message));
      return fallback;
    }
  }
}

const MOST_NAMES = 64;

/** Parts between commas, without spaces around them. */
function partsOf(text: string): string[] {
  return text.split(',').map((part) => part.trim());
}

/** The names of SSH addresses, as they were written. */
function parseSshHosts(text: string): readonly string[] {
  const hosts = partsOf(text);
  const distinct = new Set(hosts.map((host) => host.toLowerCase()));
  if (hosts.length > MOST_NAMES || distinct.size < hosts.length || !hosts.every(isHost)) {
    throw new Expected(
      `a host name or an IP address, or at most ${MOST_NAMES} different ones separated by commas`,
    );
  }
  return hosts;
}

function parseSshListen(text: string): SshListen {
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

export type { Address, Cidr, PortRange, RateLimitsConfig };

export const ACCELERATORS = ['auto', 'kvm', 'tcg'] as const;
export type Accelerator = (typeof ACCELERATORS)[number];
/** `auto`: TAP devices where the host has them, else QEMU's user network. */
const GUEST_NETWORKS = ['auto', 'user'] as const;
const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export interface S3Config {
  readonly bucket: string;
  readonly endpoint: string | null;
  readonly region: string;
  /** Both or neither. Neither: Amazon's library looks for profiles and roles. */
  readonly access_key_id: string | null;
  readonly secret_access_key: string | null;
  readonly session_token: string | null;
}

export interface TlsFiles {
  readonly cert_path: string;
  readonly key_path: string;
}

export interface Config {
  /** Absolute. */
  readonly data_dir: string;
  readonly listen: Address;
  /** The origin that people use: BERTH_PUBLIC_URL, else that of `listen`. No trailing slash. */
  readonly public_url: string;
  /** Further host names that the server answers to, in lower case. */
  readonly hosts: readonly string[];
  /** Absolute paths of PEM files. */
  readonly tls: TlsFiles | null;
  readonly trusted_proxies: readonly Cidr[];
  /** Open connections of one address to a listener; of trusted proxies as many as come. */
  readonly connections_per_address: number;
  readonly ssh: {
    /** The names in the SSH addresses of new instances. */
    readonly hosts: readonly string[];
    readonly ports: PortRange;
    readonly listen: SshListen;
  };
  /** HTTP ports of instances. */
  readonly http: {
    readonly listen: Address;
    /** Hostnames of ports are below it. In lower case. */
    readonly domain: string;
    readonly tls: TlsFiles | null;
    /** The origin of a proxy in front; null: none. */
    readonly url: string | null;
  };
  /** Password null: the first start generates and prints one. */
  readonly admin: { readonly email: string; readonly password: string | null };
  /** Null: the embedded PostgreSQL. */
  readonly database_url: string | null;
  /** Null: a folder under the data folder. */
  readonly s3: S3Config | null;
  /** Whether new objects are encrypted. Existing ones are readable either way. */
  readonly encryption: boolean;
  readonly accel: Accelerator;
  readonly guest_network: (typeof GUEST_NETWORKS)[number];
  /** 32 bytes; null: the one in the data folder. */
  readonly secret_key: Buffer | null;
  readonly signups: 'open' | 'closed';
  /** Null: no login at an OpenID provider. */
  readonly oidc: OidcConfig | null;
  /** False: the provider is the only way to log in. */
  readonly password_login: boolean;
  /** Defaults for accounts, and for organisations without their own. */
  readonly quotas: QuotaLimits;
  /** Boots start from templates of their host. */
  readonly fast_start: boolean;
  /** Null: none. */
  readonly rate_limits: RateLimitsConfig | null;
  readonly smtp_url: string | null;
  readonly webhook_allow_cidrs: readonly Cidr[];
  /** Where Prometheus reads, without a credential; null: nowhere. */
  readonly metrics_listen: Address | null;
  /** The lease of a host that is not the only one. */
  readonly host_lease_ms: number;
  /** How long objects that nothing needs any more stay in the store: for a database that is set back in time. */
  readonly removal_delay_ms: number;
  /** Where remote hosts reach the control plane, over TLS; null: nowhere. */
  readonly hosts_listen: Address | null;
  /** Where hosts, ingresses and other control planes reach this one: its own address, never a balancer's; null: unknown. */
  readonly hosts_url: string | null;
  /** On a remote host: the control plane's origin and the file with the join token; else null. */
  readonly join: JoinConfig | null;
  /** The same of an ingress on a machine without a control plane. */
  readonly ingress_join: JoinConfig | null;
  readonly log_level: LogLevel;
  /** Null: no traces. */
  readonly traces: TracesConfig | null;
}

export type ConfigResult =
  | { readonly ok: true; readonly config: Config }
  | { readonly ok: false; readonly problems: readonly string[] };

/** Relative paths are resolved against `cwd` (absolute). */
export function parseConfig(env: Env, cwd: string): ConfigResult {
  const reader = new Reader(env);
  const path = (text: string) => resolve(cwd, text);
  const listen = reader.read('BERTH_LISTEN', parseAddress, { host: '127.0.0.1', port: 7400 });
  const tls = readTls(reader, path, 'BERTH_TLS');
  const hosts_listen = reader.read('BERTH_HOSTS_LISTEN', parseAddress, null);
  const database_url = reader.read('DATABASE_URL', parseDatabaseUrl, null);
  const config: Config = {
    data_dir: reader.read('BERTH_DATA_DIR', path, path('data')),
    listen,
    public_url: reader.read('BERTH_PUBLIC_URL', parseOrigin, null) ?? originOf(listen, tls !== null),
    hosts: reader.read('BERTH_HOSTS', parseHosts, []),
    tls,
    trusted_proxies: reader.read('BERTH_TRUSTED_PROXIES', parseCidrs, []),
    connections_per_address: reader.read(
      'BERTH_CONNECTIONS_PER_ADDRESS',
      parseConnections,
      DEFAULT_CONNECTIONS_PER_ADDRESS,
    ),
    ssh: {
      hosts: reader.read('BERTH_SSH_HOST', parseSshHosts, ['127.0.0.1']),
      ports: reader.read('BERTH_SSH_PORTS', parsePorts, { first: 22_000, last: 22_999 }),
      listen: reader.read('BERTH_SSH_LISTEN', parseSshListen, LISTEN_AT_NAMES),
    },
    http: {
      listen: reader.read('BERTH_HTTP_LISTEN', parseAddress, { host: '127.0.0.1', port: 7480 }),
      domain: reader.read('BERTH_HTTP_DOMAIN', parseDomain, 'localhost'),
      tls: readTls(reader, path, 'BERTH_HTTP_TLS'),
      url: reader.read('BERTH_HTTP_URL', parseOrigin, null),
    },
    admin: {
      email: reader.read('BERTH_ADMIN_EMAIL', parseEmail, 'admin@localhost'),
      password: reader.read('BERTH_ADMIN_PASSWORD', parsePassword, null),
    },
    database_url,
    s3: readS3(reader),
    encryption: reader.read('BERTH_DISK_ENCRYPTION', parseChoice(['on', 'off']), 'on') === 'on',
    accel: reader.read('BERTH_ACCEL', parseChoice(ACCELERATORS), 'auto'),
    guest_network: reader.read('BERTH_GUEST_NETWORK', parseChoice(GUEST_NETWORKS), 'auto'),
    secret_key: reader.read('BERTH_SECRET_KEY', parseSecretKey, null),
    signups: reader.read('BERTH_SIGNUPS', parseChoice(['open', 'closed']), 'closed'),
    oidc: readOidc(reader),
    password_login: reader.read('BERTH_PASSWORD_LOGIN', parseChoice(['on', 'off']), 'on') === 'on',
    quotas: reader.read('BERTH_QUOTA_DEFAULTS', parseQuotas, QUOTA_DEFAULTS),
    fast_start: reader.read('BERTH_FAST_START', parseChoice(['on', 'off']), 'on') === 'on',
    rate_limits: reader.read('BERTH_RATE_LIMITS', parseRateLimits, DEFAULT_RATE_LIMITS),
    smtp_url: reader.read('BERTH_SMTP_URL', parseSmtpUrl, null),
    webhook_allow_cidrs: reader.read('BERTH_WEBHOOK_ALLOW_CIDRS', parseCidrs, []),
    metrics_listen: reader.read('BERTH_METRICS_LISTEN', parseAddress, null),
    host_lease_ms: reader.read('BERTH_HOST_LEASE_SECONDS', parseLease, 40_000),
    // Only somebody else's PostgreSQL is set back to a point in time.
    removal_delay_ms: reader.read(
      'BERTH_REMOVAL_DELAY_HOURS',
      parseRemovalDelay,
      (database_url === null ? 1 : 24) * 3_600_000,
    ),
    hosts_listen,
    hosts_url: reader.read('BERTH_HOSTS_URL', parseHttpsOrigin, null) ?? dialled(hosts_listen),
    ...readJoins(reader, path),
    log_level: reader.read('BERTH_LOG_LEVEL', parseChoice(LOG_LEVELS), 'info'),
    traces: readTraces(reader),
  };
  const problems = [
    ...reader.problems,
    ...together(config, reader),
    ...unknownSettings(Object.keys(env).filter((name) => reader.text(name) !== null)),
  ];
  return problems.length === 0 ? { ok: true, config } : { ok: false, problems };
}

function readTls(
  reader: Reader,
  path: (text: string) => string,
  prefix: 'BERTH_TLS' | 'BERTH_HTTP_TLS',
): Config['tls'] {
  const cert_path = reader.read(`${prefix}_CERT`, path, null);
  const key_path = reader.read(`${prefix}_KEY`, path, null);
  if (cert_path !== null && key_path !== null) return { cert_path, key_path };
  const [has, lacks] = cert_path !== null ? ['CERT', 'KEY'] : ['KEY', 'CERT'];
  if (cert_path !== null || key_path !== null) {
    reader.problems.push(`${prefix}_${lacks} is missing; ${prefix}_${has} is set, and TLS needs both`);
  }
  return null;
}

const OIDC_PARTS = ['BERTH_OIDC_ISSUER', 'BERTH_OIDC_CLIENT_ID', 'BERTH_OIDC_CLIENT_SECRET'] as const;

function readOidc(reader: Reader): OidcConfig | null {
  const issuer = reader.read('BERTH_OIDC_ISSUER', parseIssuer, null);
  const groups = reader.read('BERTH_OIDC_GROUPS', parseGroups, []);
  const [client_id, client_secret] = [
    reader.text('BERTH_OIDC_CLIENT_ID'),
    reader.text('BERTH_OIDC_CLIENT_SECRET'),
  ];
  const given = [...OIDC_PARTS, 'BERTH_OIDC_GROUPS', 'BERTH_PASSWORD_LOGIN'].find((name) => {
    const text = reader.text(name);
    return name === 'BERTH_PASSWORD_LOGIN' ? text === 'off' : text !== null;
  });
  if (given === undefined) return null;
  for (const lacks of OIDC_PARTS.filter((name) => reader.text(name) === null)) {
    reader.problems.push(
      `${lacks} is missing; ${given} is set, and a login at a provider needs issuer, client id and client secret`,
    );
  }
  if (issuer === null || client_id === null || client_secret === null) return null;
  return { issuer, client_id, client_secret, groups };
}

function readS3(reader: Reader): S3Config | null {
  const bucket = reader.text('BERTH_S3_BUCKET');
  const endpoint = reader.read('BERTH_S3_ENDPOINT', parseOrigin, null);
  if (bucket === null) {
    if (reader.text('BERTH_S3_ENDPOINT') !== null) {
      reader.problems.push('BERTH_S3_BUCKET is missing; BERTH_S3_ENDPOINT is set, and needs it');
    }
    return null;
  }
  if (!/^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/.test(bucket)) {
    reader.problems.push(
      problemLine('BERTH_S3_BUCKET', bucket, 'a bucket name: 3 to 63 of a-z, 0-9, dot and hyphen'),
    );
  }
  const access_key_id = reader.text('AWS_ACCESS_KEY_ID');
  const secret_access_key = reader.text('AWS_SECRET_ACCESS_KEY');
  if ((access_key_id === null) !== (secret_access_key === null)) {
    const [has, lacks] =
      access_key_id === null
        ? ['AWS_SECRET_ACCESS_KEY', 'AWS_ACCESS_KEY_ID']
        : ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'];
    reader.problems.push(`${lacks} is missing; ${has} is set, and S3 needs both or neither`);
  }
  return {
    bucket,
    endpoint,
    region: readRegion(reader),
    access_key_id,
    secret_access_key,
    session_token: reader.text('AWS_SESSION_TOKEN'),
  };
}

function readRegion(reader: Reader): string {
  for (const name of ['AWS_REGION', 'AWS_DEFAULT_REGION']) {
    const region = reader.text(name);
    if (region === null) continue;
    // It becomes part of a host name.
    if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(region)) {
      reader.problems.push(problemLine(name, region, 'a region such as eu-central-1'));
    }
    return region;
  }
  return 'us-east-1';
}

/** Problems between settings that are valid by themselves. */
function together(config: Config, reader: Reader): string[] {
  const problems: string[] = [];
  const { listen, tls, ssh } = config;
  const data_dir = dataDirProblem(config.data_dir);
  if (data_dir !== undefined) problems.push(data_dir);
  // An invalid public URL has its own line.
  const public_url = reader.text('BERTH_PUBLIC_URL');
  if (!isLoopback(listen.host) && tls === null && !(public_url ?? '').startsWith('https:')) {
    problems.push(
      `BERTH_LISTEN: ${JSON.stringify(addressText(listen))} can be reached from other machines; expected BERTH_TLS_CERT and BERTH_TLS_KEY, ` +
        'or an https BERTH_PUBLIC_URL when a proxy in front does TLS',
    );
  }
  problems.push(...httpProblems(config, reader));
  if (config.hosts_listen !== null && config.s3 === null && reader.text('BERTH_S3_BUCKET') === null) {
    problems.push('BERTH_S3_BUCKET is missing; BERTH_HOSTS_LISTEN is set, and several hosts need one bucket');
  }
  if (config.hosts_url !== null && reader.text('BERTH_HOSTS_LISTEN') === null) {
    problems.push('BERTH_HOSTS_LISTEN is missing; BERTH_HOSTS_URL is set, and names where others reach it');
  }
  if (tls !== null && (public_url ?? '').startsWith('http:')) {
    problems.push(problemLine('BERTH_PUBLIC_URL', public_url ?? '', 'an https origin, because TLS is on'));
  }
  if (ssh.hosts.length > 1 && ssh.listen.every !== null) {
    problems.push(
      `BERTH_SSH_LISTEN: ${JSON.stringify(ssh.listen.every)} is one address for the ${ssh.hosts.length} names of BERTH_SSH_HOST; expected ${ssh.hosts.map((name) => `${name}=ADDRESS`).join(',')}, because the same port is open at each`,
    );
  }
  if (listen.port >= ssh.ports.first && listen.port <= ssh.ports.last) {
    problems.push(
      `BERTH_SSH_PORTS: ${JSON.stringify(`${ssh.ports.first}-${ssh.ports.last}`)} contains the port of BERTH_LISTEN; expected ranges apart`,
    );
  }
  return problems;
}

function httpProblems({ http, listen, ssh }: Config, reader: Reader): string[] {
  const problems: string[] = [];
  // An invalid URL has its own line.
  const url = reader.text('BERTH_HTTP_URL') ?? '';
  if (!isLoopback(http.listen.host) && http.tls === null && !url.startsWith('https:')) {
    problems.push(
      `BERTH_HTTP_LISTEN: ${JSON.stringify(addressText(http.listen))} can be reached from other machines; expected BERTH_HTTP_TLS_CERT and BERTH_HTTP_TLS_KEY, ` +
        'or an https BERTH_HTTP_URL when a proxy in front does TLS',
    );
  }
  if (http.tls !== null && url.startsWith('http:')) {
    problems.push(problemLine('BERTH_HTTP_URL', url, 'an https origin, because TLS is on'));
  }
  const { port } = http.listen;
  if (port === listen.port) {
    problems.push(
      problemLine('BERTH_HTTP_LISTEN', addressText(http.listen), 'another port than BERTH_LISTEN'),
    );
  }
  if (port >= ssh.ports.first && port <= ssh.ports.last) {
    problems.push(
      problemLine('BERTH_HTTP_LISTEN', addressText(http.listen), 'a port outside BERTH_SSH_PORTS'),
    );
  }
  return problems;
}

function addressText({ host, port }: Address): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

function originOf(address: Address, tls: boolean): string {
  return new URL(`${tls ? 'https' : 'http'}://${addressText(address)}`).origin;
}

/** The origin of an address that others can dial; null: of a wildcard. */
function dialled(address: Address | null): string | null {
  if (address === null || ['0.0.0.0', '::'].includes(address.host)) return null;
  return originOf(address, true);
}

/** How a client on this machine reaches `listen`: the loopback for a wildcard. */
export function localOrigin(config: Config): string {
  const { host, port } = config.listen;
  const reachable = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host;
  return originOf({ host: reachable, port }, config.tls !== null);
}
