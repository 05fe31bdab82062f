/**
 * The audit log: who did what, when and from where. One chain an organisation: each entry's MAC covers the entry and
 * the MAC before it, under a key that the database does not have, so an entry can be neither changed, removed nor
 * put in between without `berth audit verify` finding it. (Only cutting off the newest entries together with the
 * head cannot be told from a log that never had them.)
 *
 *   mac(n) = HMAC-SHA-256(key, mac(n-1) ‖ n ‖ canonical JSON of entry n), computed by PostgreSQL in the statement that
 *   appends, so that the chain's head costs one round trip.
 */
import { createHmac } from 'node:crypto';
import { CompiledQuery } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { rfc3339 } from '../lib/clock.ts';
import { type AuditId, newId, type OrgId } from '../lib/ids.ts';
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

const HASH_BLOCK_BYTES = 64;
const PAGE = 1_000;

/** The MAC in SQL, of the expressions for the MAC before and for the number. Keep to the order of {@link AuditLog.statement}. */
function mac(previous: string, seq: string): string {
  return `sha256($2::bytea || sha256($3::bytea || ${previous} || convert_to((${seq})::text || $4::text, 'UTF8')))`;
}
const APPEND = `
  with next as (
    insert into audit_heads as h (org_id, seq, mac)
    values ($1, 1, ${mac("''::bytea", '1')})
    on conflict (org_id) do update set seq = h.seq + 1, mac = ${mac('h.mac', 'h.seq + 1')}
    returning seq, mac
  )
  insert into audit_log (org_id, seq, id, at, actor, action, target, ip, request_id, data, mac)
  select $1, seq, $5, $6::timestamptz, $7, $8, $9, $10, $11, $12::jsonb, mac from next`;

export class AuditLog {
  readonly #key: Buffer;
  readonly #inner_pad: Buffer;
  readonly #outer_pad: Buffer;

  constructor(secret_key: Buffer) {
    this.#key = deriveKey(secret_key, 'berth audit v1');
    // RFC 2104: HMAC = H(K ⊕ opad ‖ H(K ⊕ ipad ‖ text)).
    const padded = Buffer.concat([this.#key, Buffer.alloc(HASH_BLOCK_BYTES - this.#key.length)]);
    this.#inner_pad = Buffer.from(padded.map((byte) => byte ^ 0x36));
    this.#outer_pad = Buffer.from(padded.map((byte) => byte ^ 0x5c));
  }

  /** Appends in the caller's transaction; the organisation's chain is locked until its end, so call it last. */
  async append(tx: Tx, org_id: OrgId, entry: AuditEntry): Promise<void> {
    await tx.executeQuery(this.statement(org_id, entry));
  }

  /** What appends, for `transaction` to send with COMMIT: the chain is locked for no longer than it must be. */
  statement(org_id: OrgId, entry: AuditEntry): CompiledQuery {
    const id = newId('aud');
    const at = rfc3339(new Date());
    const text = entryText(id, at, entry);
    return CompiledQuery.raw(APPEND, [
      org_id,
      this.#outer_pad,
      this.#inner_pad,
      text,
      id,
      at,
      entry.actor,
      entry.action,
      entry.target,
      entry.ip,
      entry.request_id,
      JSON.stringify(entry.data),
    ]);
  }

  /** Whether the chain of an organisation is whole; else the number of the first entry that does not fit. */
  async verify(tx: Tx, org_id: OrgId): Promise<{ entries: number; broken_at: number | null }> {
    let previous: Buffer = Buffer.alloc(0);
    let seq = 0;
    for (;;) {
      const rows = await entriesAfter(tx, org_id, seq);
      for (const row of rows) {
        seq += 1;
        const text = entryText(row.id, rfc3339(row.at), row);
        const mac = createHmac('sha256', this.#key).update(previous).update(`${seq}${text}`).digest();
        if (row.seq !== seq || !mac.equals(row.mac)) return { entries: seq - 1, broken_at: seq };
        previous = row.mac;
      }
      if (rows.length < PAGE) break;
    }
    const head = await tx
      .selectFrom('audit_heads')
      .selectAll()
      .where('org_id', '=', org_id)
      .executeTakeFirst();
    const whole = head ? head.seq === seq && head.mac.equals(previous) : seq === 0;
    return { entries: seq, broken_at: whole ? null : seq + 1 };
  }
}

function entriesAfter(tx: Tx, org_id: OrgId, seq: number) {
  return tx
    .selectFrom('audit_log')
    .selectAll()
    .where('org_id', '=', org_id)
    .where('seq', '>', seq)
    .orderBy('seq')
    .limit(PAGE)
    .execute();
}

function entryText(
  id: AuditId,
  at: string,
  { actor, action, target, ip, request_id, data }: AuditEntry,
): string {
  return canonicalJson({ id, at, actor, action, target, ip, request_id, data });
}
