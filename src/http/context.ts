import type { NotifyHub } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import type { SshEndpoint } from '../instances/create-instance.ts';
import type { Log } from '../lib/log.ts';

/** What the handlers need, made once by `main.ts`. */
export interface AppContext {
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly log: Log;
  /** 32 bytes; keys for single purposes are derived from it. */
  readonly secret_key: Buffer;
  readonly ssh: SshEndpoint;
  readonly public_url: string;
  /** Addresses or CIDRs whose `X-Forwarded-For` is believed. */
  readonly trusted_proxies: readonly string[];
  readonly tls: { readonly cert: Buffer; readonly key: Buffer } | null;
}
