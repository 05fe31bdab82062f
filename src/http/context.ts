import type { AuditLog } from '../audit/append.ts';
import type { NotifyHub } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import type { DiskKeys } from '../disks/data-keys.ts';
import type { HostCalls } from '../hosts/host-calls.ts';
import type { SshEndpoint } from '../instances/create-instance.ts';
import type { Log } from '../lib/log.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import type { Sealer } from '../lib/seal.ts';
import type { Mailbox } from '../mail/mailbox.ts';
import type { Outbound } from '../webhooks/outbound/outbound.ts';
import type { RequestMetrics } from './monitoring/request-metrics.ts';
import type { RequestLimits } from './rate-limits.ts';

/** What the handlers need, made once by the control plane's role. */
export interface AppContext {
  readonly db: Db;
  readonly hub: NotifyHub;
  /** What hosts are asked while a caller waits. */
  readonly host_calls: HostCalls;
  readonly log: Log;
  /** 32 bytes; keys for single purposes are derived from it. */
  readonly secret_key: Buffer;
  readonly audit: AuditLog;
  /** Seals the answers kept for Idempotency-Keys. */
  readonly idempotency: Sealer;
  /** Seals second factors' secrets. */
  readonly factors: Sealer;
  /** The keys that disks are encrypted with. */
  readonly disk_keys: DiskKeys;
  /** Where mails wait to be sent. */
  readonly mailbox: Mailbox;
  /** The way to the receivers, and what seals their secrets. */
  readonly webhooks: { readonly outbound: Outbound; readonly secrets: Sealer };
  readonly ssh: SshEndpoint;
  /** The limits of accounts, and of organisations for which none was set. */
  readonly quotas: QuotaLimits;
  /** Mail leaves the machine. Otherwise every address counts as confirmed: nothing can be sent there. */
  readonly has_smtp: boolean;
  /** The origin people use; no slash at its end. */
  readonly public_url: string;
  /** More names that Berth answers to, beside the public URL's and the loopback's; absent: none. */
  readonly hosts?: readonly string[];
  readonly signups: 'open' | 'closed';
  /** Null: none. */
  readonly rate_limits: RequestLimits | null;
  /** Addresses or CIDRs whose `X-Forwarded-For` is believed. */
  readonly trusted_proxies: readonly string[];
  /** The built web console's files; absent: none is served. */
  readonly console_dir?: string;
  /** Of streams; absent: 15 s. */
  readonly heartbeat_ms?: number;
  /** A request that took so long until its body was there is looked at again; absent: 2 s. */
  readonly slow_ms?: number;
  /** Counts the requests that were answered; absent: nobody reads. */
  readonly metrics?: RequestMetrics;
  readonly tls: { readonly cert: Buffer; readonly key: Buffer } | null;
}
