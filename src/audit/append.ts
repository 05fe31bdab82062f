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
import { type RawBuilder, sql } from 'kysely';
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
    const id = newId('aud');
    const at = rfc3339(new Date());
    const text = entryText(id, at, entry);
    const mac = (previous: RawBuilder<unknown>, seq: RawBuilder<unknown>) =>
      sql`sha256(${this.#outer_pad}::bytea || sha256(${this.#inner_pad}::bytea || ${previous} || convert_to((${seq})::text || ${text}::text, 'UTF8')))`;
    await sql`
      with next as (
        insert into audit_heads as h (org_id, seq, mac)
        values (${org_id}, 1, ${mac(sql`''::bytea`, sql`1`)})
        on conflict (org_id) do update set seq = h.seq + 1, mac = ${mac(sql`h.mac`, sql`h.seq + 1`)}
        returning seq, mac
      )
      insert into audit_log (org_id, seq, id, at, actor, action, target, ip, request_id, data, mac)
      select ${org_id}, seq, ${id}, ${at}::timestamptz, ${entry.actor}, ${entry.action}, ${entry.target}, ${entry.ip},
             ${entry.request_id}, ${JSON.stringify(entry.data)}::jsonb, mac
      from next`.execute(tx);
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
