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

  own(entry: WrittenEntry): Buffer {
    return this.#own(textsOf(entry));
  }

  /** `previous`: that of the entry before; empty before the first. */
  chained(previous: Buffer, seq: number, entry: WrittenEntry): Buffer {
    return this.#chained(previous, seq, textsOf(entry));
  }

  /** As {@link chained}, of an entry that is under its own MAC so far; null where that one does not fit. */
  chainedAfter(previous: Buffer, seq: number, entry: WrittenEntry, own_mac: Buffer): Buffer | null {
    const texts = textsOf(entry);
    return this.#own(texts).equals(own_mac) ? this.#chained(previous, seq, texts) : null;
  }

  #own({ with_organisation }: Texts): Buffer {
    return createHmac('sha256', this.#entry_key).update(with_organisation).digest();
  }

  #chained(previous: Buffer, seq: number, { without }: Texts): Buffer {
    return createHmac('sha256', this.#chain_key).update(previous).update(`${seq}${without}`).digest();
  }
}

/** Canonical JSON of an entry. */
interface Texts {
  readonly with_organisation: string;
  readonly without: string;
}

/** Written out in the order of the keys: an entry is known by these texts three times before it is in its chain. */
function textsOf({ org_id, id, at, actor, action, target, ip, request_id, data }: WrittenEntry): Texts {
  const json = (text: string | null) => JSON.stringify(text);
  const before =
    `{"action":${json(action)},"actor":${json(actor)},"at":${json(at)},"data":${canonicalJson(data)},` +
    `"id":${json(id)},"ip":${json(ip)},`;
  const after = `"request_id":${json(request_id)},"target":${json(target)}}`;
  return { with_organisation: `${before}"org_id":${json(org_id)},${after}`, without: before + after };
}
