/** Runs the task `seal-audit`, which seals the entries of all audit logs, and computes the MACs of entries. */
import { createHmac, createSecretKey, type KeyObject } from 'node:crypto';
import { canonicalJson } from '../../shared/canonical-json.ts';
import type { AuditId, OrgId } from '../../shared/ids.ts';
import { deriveKey } from '../../shared/seal.ts';
import type { Db } from '../db/pool.ts';
import type { AuditLog } from './append.ts';

const BATCH = 500;

export async function sealAudit(db: Db, audit: AuditLog): Promise<void> {
  while ((await audit.seal(db, BATCH)) === BATCH);
}

export interface AuditEntry {
  readonly actor: string;
  /** `api_key.create`, `auth.login`, … */
  readonly action: string;
  readonly target: string | null;
  readonly ip: string | null;
  readonly request_id: string | null;
  readonly data: Record<string, unknown>;
}

export interface WrittenEntry extends AuditEntry {
  readonly id: AuditId;
  readonly org_id: OrgId;
  /** RFC 3339, in milliseconds. */
  readonly at: string;
}

/** The chain MAC before the first entry's. */
export const NO_MAC: Buffer = Buffer.alloc(0);

/**
 * The two MACs of an audit entry, under keys that are not in the database:
 *
 *   own(n)   = HMAC-SHA-256(entry key, canonical JSON of the entry)        stored until the entry is sealed
 *   chain(n) = HMAC-SHA-256(chain key, chain(n-1) ‖ n ‖ own(n))            stored from then on
 */
export class AuditMacs {
  /** Objects, not bytes: making one for each MAC costs ten times the MAC. */
  readonly #entry_key: KeyObject;
  readonly #chain_key: KeyObject;

  constructor(root_key: Buffer) {
    this.#entry_key = createSecretKey(deriveKey(root_key, 'berth audit entry v1'));
    this.#chain_key = createSecretKey(deriveKey(root_key, 'berth audit v1'));
  }

  own({ org_id, id, at, actor, action, target, ip, request_id, data }: WrittenEntry): Buffer {
    const entry = { org_id, id, at, actor, action, target, ip, request_id, data };
    return createHmac('sha256', this.#entry_key).update(canonicalJson(entry)).digest();
  }

  chained(previous: Buffer, seq: number, own: Buffer): Buffer {
    return createHmac('sha256', this.#chain_key).update(previous).update(`${seq}`).update(own).digest();
  }
}
