/**
 * Defines `AppContext`: what the program gives to the handlers of the public API, such as database, keys, mailbox,
 * limits, settings, and calls to hosts. `keyedParts` makes those members that derive from the root key.
 */
import type { Log } from '../shared/log.ts';
import type { QuotaLimits } from '../shared/quotas.ts';
import { Sealer } from '../shared/seal.ts';
import { AuditLog } from './audit/append.ts';
import type { NotifyHub } from './db/notify.ts';
import type { Db } from './db/pool.ts';
import type { DiskKeys } from './disks/data-keys.ts';
import type { HostCalls } from './fleet/host-calls.ts';
import type { Installation } from './fleet/weaknesses.ts';
import type { RequestLimits } from './http/rate-limits.ts';
import type { Flows, OidcProvider } from './identity/oidc/provider.ts';
import type { SshEndpoint } from './instances/create-instance.ts';
import type { Mailbox } from './mail/store.ts';
import type { RequestMetrics } from './monitoring/metrics.ts';
import type { HttpEndpoint } from './ports/model.ts';
import { secretSealer } from './secrets/seal-value.ts';
import type { Outbound } from './webhooks/outbound.ts';

/** The dependencies of the handlers, created once by the control plane's role. */
export interface AppContext {
  readonly db: Db;
  readonly hub: NotifyHub;
  /** Calls to hosts that a caller waits for. */
  readonly host_calls: HostCalls;
  readonly log: Log;
  /** 32 bytes, from which a key for each purpose is derived (control-plane/fleet/root-key.ts). */
  readonly root_key: Buffer;
  readonly audit: AuditLog;
  /** Seals the stored responses of Idempotency-Keys. */
  readonly idempotency: Sealer;
  /** Seals second factors' secrets. */
  readonly factors: Sealer;
  /** Seals the values of VMs' secrets. */
  readonly secrets: Sealer;
  /** Encryption keys of disks. */
  readonly disk_keys: DiskKeys;
  /** Queues mails. */
  readonly mailbox: Mailbox;
  /** Sends requests to receivers, and seals their secrets. */
  readonly webhooks: { readonly outbound: Outbound; readonly secrets: Sealer };
  readonly ssh: SshEndpoint;
  /** Where clients reach HTTP ports. */
  readonly http: HttpEndpoint;
  /** The limits of accounts, and the default limits of organisations. */
  readonly quotas: QuotaLimits;
  /** Mail can be sent. Otherwise every address counts as confirmed. */
  readonly has_smtp: boolean;
  /** The public origin, without a trailing slash. */
  readonly public_url: string;
  /** Host names accepted beside those of the public URL and the loopback; absent: none. */
  readonly hosts?: readonly string[];
  readonly signups: 'open' | 'closed';
  /** The OpenID provider that people log in at; null: none. */
  readonly oidc: {
    readonly provider: OidcProvider;
    readonly flows: Flows;
    /** Seals refresh tokens. */
    readonly identities: Sealer;
  } | null;
  /** False: the provider is the only way to log in. */
  readonly password_login: boolean;
  /** Null: none. */
  readonly rate_limits: RequestLimits | null;
  /** How many control planes live, with this one; absent: it is alone. */
  readonly control_planes?: () => number;
  /** Addresses or CIDRs whose `X-Forwarded-For` is trusted. */
  readonly trusted_proxies: readonly string[];
  /** The built web console; absent: it is not served. */
  readonly console_dir?: string;
  /** The built documentation; absent: `/docs` has only the API reference. */
  readonly site_dir?: string;
  /** The interval of streams' heartbeats; absent: 15 s. */
  readonly heartbeat_ms?: number;
  /** A request whose body took longer is reauthorised; absent: 2 s. */
  readonly slow_ms?: number;
  /** Counts requests; absent: they are not counted. */
  readonly metrics?: RequestMetrics;
  /** For the operator. */
  readonly installation: Installation;
  readonly tls: { readonly cert: Buffer; readonly key: Buffer } | null;
}

/** The root key, and what seals or signs with a key derived from it. */
export function keyedParts(root_key: Buffer) {
  return {
    root_key,
    audit: new AuditLog(root_key),
    idempotency: new Sealer(root_key, 'berth idempotency v1'),
    factors: new Sealer(root_key, 'berth factors v1'),
    secrets: secretSealer(root_key),
  };
}
