/** Settings that weaken an installation: each is somebody's choice, and `berth doctor` on the server lists it. Pure. */
import { isLoopback } from '../lib/loopback.ts';
import type { Config } from './config.ts';

export interface WeakSetting {
  readonly check: string;
  /** What is so, and why it matters. Never a secret. */
  readonly found: string;
  readonly next: string;
}

export function weakSettings(config: Config): WeakSetting[] {
  const weak: WeakSetting[] = [];
  const add = (check: string, found: string, next: string) => weak.push({ check, found, next });
  if (config.signups === 'open')
    add(
      'sign-ups',
      'open: anybody who reaches the API makes an account and an organisation',
      'BERTH_SIGNUPS=closed',
    );
  const tls = weakTls(config);
  if (tls) weak.push(tls);
  if (config.rate_limits === null)
    add(
      'rate limits',
      'off: passwords can be tried, and requests sent, as fast as the server answers',
      'BERTH_RATE_LIMITS=on',
    );
  if (config.smtp_url === null) {
    const found = 'none: resets, invitations and warnings are files on the server and reach nobody';
    add('mail server', found, 'BERTH_SMTP_URL=smtp://…');
  }
  if (config.webhook_allow_cidrs.length > 0) {
    const networks = config.webhook_allow_cidrs
      .map(({ address, prefix }) => `${address}/${prefix}`)
      .join(', ');
    const found = `may reach ${networks}: any organisation's administrator sends requests there`;
    add('webhooks', found, 'BERTH_WEBHOOK_ALLOW_CIDRS, empty or narrower');
  }
  const metrics = config.metrics_listen;
  if (metrics !== null && !isLoopback(metrics.host)) {
    const found = `/metrics listens at ${metrics.host}:${metrics.port}, where it shows ids and numbers without a credential`;
    add('metrics', found, 'BERTH_METRICS_LISTEN, at an address that Prometheus alone reaches');
  }
  if (!config.encryption) {
    const found = 'off: whoever reads the object store reads the disks';
    add('disk encryption', found, 'BERTH_DISK_ENCRYPTION=on; it holds for what is flushed from then on');
  }
  if (config.trusted_proxies.some(({ prefix }) => prefix === 0)) {
    const found = 'everybody: callers choose the address that limits and logs go by';
    add('trusted proxies', found, "BERTH_TRUSTED_PROXIES, the proxy's own address");
  }
  return weak;
}

function weakTls({ listen, tls, public_url }: Config): WeakSetting | undefined {
  if (tls !== null) return undefined;
  const check = 'TLS';
  if (!isLoopback(listen.host)) {
    const found = `none at ${listen.host}:${listen.port}: who goes around the proxy sends passwords in the clear`;
    return {
      check,
      found,
      next: 'BERTH_LISTEN at an address that the proxy alone reaches, or BERTH_TLS_CERT and BERTH_TLS_KEY',
    };
  }
  if (public_url.startsWith('https:')) return undefined;
  const host = new URL(public_url).hostname.replace(/^\[|\]$/g, '');
  const alone = isLoopback(host) || host === 'localhost';
  const found = alone
    ? 'none: right while this machine alone reaches the API; through anything else passwords travel in the clear'
    : `none: people use ${public_url}, and their passwords travel in the clear`;
  return {
    check,
    found,
    next: 'BERTH_TLS_CERT and BERTH_TLS_KEY, or a proxy and an https BERTH_PUBLIC_URL, before others use it',
  };
}
