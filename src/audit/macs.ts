/**
 * The two MACs of an audit entry, under keys that the database does not have:
 *
 *   own      = HMAC-SHA-256(entry key, canonical JSON of organisation and entry)           until it is in the chain
 *   chain(n) = HMAC-SHA-256(chain key, chain(n-1) ‖ n ‖ canonical JSON of entry n)         from then on
 */
import { createHmac, createSecretKey, type KeyObject } from 'node:crypto';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { AuditId, OrgId } from '../lib/ids.ts';
import { deriveKey } from '../lib/seal.ts';

export interface AuditEntry {
  readonly actor: string;
  /** `api_key.create`, `auth.login`, … */
  readonly action: string;
  readonly target: string | null;
  readonly ip: string | null;
  readonly request_id: string | null;
  readonly data: Record<string, unknown>;
}

/** With what it was given when it was written. */
export interface WrittenEntry extends AuditEntry {
  readonly id: AuditId;
  readonly org_id: OrgId;
  /** RFC 3339, in milliseconds. */
  readonly at: string;
}

export class AuditMacs {
  /** Objects, not bytes: making one for each MAC costs ten times the MAC. */
  readonly #entry_key: KeyObject;
  readonly #chain_key: KeyObject;

  constructor(secret_key: Buffer) {
    this.#entry_key = createSecretKey(deriveKey(secret_key, 'berth audit entry v1'));
    this.#chain_key = createSecretKey(deriveKey(secret_key, 'berth audit v1'));
  }

  own({ org_id, id, at, actor, action, target, ip, request_id, data }: WrittenEntry): Buffer {
    const text = canonicalJson({ org_id, id, at, actor, action, target, ip, request_id, data });
    return createHmac('sha256', this.#entry_key).update(text).digest();
  }

  /** `previous`: that of the entry before; empty before the first. */
  chained(
    previous: Buffer,
    seq: number,
    { id, at, actor, action, target, ip, request_id, data }: WrittenEntry,
  ): Buffer {
    const text = canonicalJson({ id, at, actor, action, target, ip, request_id, data });
    return createHmac('sha256', this.#chain_key).update(previous).update(`${seq}${text}`).digest();
  }
}
