/**
 * Finds settings that weaken an installation, for `berth doctor` (`weakSettings`), and derives the scheme, domain and
 * port of the URLs of published HTTP ports (`httpEndpoint`). Pure.
 */
import { isLoopback } from '../shared/networks.ts';
import type { Config } from './config.ts';

export interface WeakSetting {
  readonly check: string;
  /** The setting and its risk. Never a secret. */
  readonly found: string;
  readonly next: string;
}

export function weakSettings(config: Config): WeakSetting[] {
  const weak: WeakSetting[] = [];
  const add = (check: string, found: string, next: string) => weak.push({ check, found, next });
  if (config.signups === 'open')
    add(
      'sign-ups',
      'open: anybody who reaches the API can create an account and an organisation',
      'BERTH_SIGNUPS=closed',
    );
  const tls = weakTls(config);
  if (tls) weak.push(tls);
  const local = localUrl(config);
  if (local) weak.push(local);
  if (config.rate_limits === null)
    add(
      'rate limits',
      'off: passwords can be tried, and requests sent, as fast as the server answers',
      'BERTH_RATE_LIMITS=on',
    );
  if (config.smtp_url === null) {
    const found = 'no mail server: invitations, password resets and warnings become files on the server';
    add('mail', found, 'BERTH_SMTP_URL=smtp://…');
  }
  if (config.webhook_allow_cidrs.length > 0) {
    const networks = config.webhook_allow_cidrs
      .map(({ address, prefix }) => `${address}/${prefix}`)
      .join(', ');
    const found = `may reach ${networks}: any organisation's administrator can send requests there`;
    add('webhooks', found, 'BERTH_WEBHOOK_ALLOW_CIDRS, empty or narrower');
  }
  const metrics = config.metrics_listen;
  if (metrics !== null && !isLoopback(metrics.host)) {
    const found = `/metrics listens at ${metrics.host}:${metrics.port}, where it shows ids and numbers without a credential`;
    add('metrics', found, 'BERTH_METRICS_LISTEN, at an address that only Prometheus reaches');
  }
  if (!config.encryption) {
    const found = 'off: everybody with access to the object store can read the disks';
    add('disk encryption', found, 'BERTH_DISK_ENCRYPTION=on; it applies to later flushes');
  }
  if (config.trusted_proxies.some(({ prefix }) => prefix === 0)) {
    const found = 'everybody: callers choose the address that limits and logs use';
    add('trusted proxies', found, "BERTH_TRUSTED_PROXIES, the proxy's own address");
  }
  return weak;
}

const hostOf = (url: string) => new URL(url).hostname.replace(/^\[|\]$/g, '');

function localUrl({ public_url }: Config): WeakSetting | undefined {
  const host = hostOf(public_url);
  if (!isLoopback(host) && host !== '0.0.0.0' && host !== '::') return undefined;
  const found = `${public_url}: links of invitations and mails open only on this machine`;
  return { check: 'public URL', found, next: 'BERTH_PUBLIC_URL=https://…, the address that people use' };
}

function weakTls({ listen, tls, public_url }: Config): WeakSetting | undefined {
  if (tls !== null) return undefined;
  const check = 'TLS';
  if (!isLoopback(listen.host)) {
    const found = `none at ${listen.host}:${listen.port}: clients that bypass the proxy send passwords in the clear`;
    return {
      check,
      found,
      next: 'BERTH_LISTEN at an address that only the proxy reaches, or BERTH_TLS_CERT and BERTH_TLS_KEY',
    };
  }
  if (public_url.startsWith('https:')) return undefined;
  const found = isLoopback(hostOf(public_url))
    ? 'none: safe only while nothing but this machine reaches the API; else passwords travel in the clear'
    : `none: people use ${public_url}, and their passwords travel in the clear`;
  return {
    check,
    found,
    next: 'BERTH_TLS_CERT and BERTH_TLS_KEY, or a proxy and an https BERTH_PUBLIC_URL, before others use it',
  };
}

export interface HttpEndpoint {
  /** The hostnames of ports are below it; in lower case. */
  readonly domain: string;
  readonly scheme: 'http' | 'https';
  /** Null: the scheme's own. */
  readonly port: number | null;
}

interface HttpSettings {
  readonly domain: string;
  readonly listen_port: number;
  readonly tls: boolean;
  /** The origin in front of the listener, such as `https://apps.example.com` of a proxy; null: none. */
  readonly url: string | null;
}

export function httpEndpoint({ domain, listen_port, tls, url }: HttpSettings): HttpEndpoint {
  const scheme = tls ? 'https' : 'http';
  const { protocol, port } = new URL(url ?? `${scheme}://${domain}:${listen_port}`);
  return {
    domain: domain.toLowerCase(),
    scheme: protocol === 'https:' ? 'https' : 'http',
    port: port === '' ? null : Number(port),
  };
}
