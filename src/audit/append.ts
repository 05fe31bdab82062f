/**
 * The audit log: who did what, when and from where.
 *
 *   written ── its own transaction's COMMIT ──▶ unsealed ── the sealer, within a quarter of a second ──▶ sealed
 *
 * An entry is written in the transaction that it tells of, under a MAC of its own, so that it cannot be altered
 * unnoticed. Then it gets its number and its place in the organisation's one chain, where each MAC covers the entry and
 * the MAC before it: from then on it can be neither changed, removed nor put elsewhere without `berth audit verify`
 * finding it. Two things cannot be seen: the removal of an entry before it is sealed, and cutting off the newest
 * entries together with the head. Formulas: macs.ts.
 *
 * Why not chained at once: the head would be locked until its transaction is on the disk, and the writes of an
 * organisation would wait for each other's fsync.
 *
 * Invariants: a chain has one sealer at a time, who holds the lock of its head; numbers have no gap, and follow
 * `serial` within a batch; an entry whose own MAC does not fit is never sealed.
 */
import { afterCommit, type Db, type Tx, transaction } from '../db/pool.ts';
import { rfc3339 } from '../lib/clock.ts';
import { type AuditId, newId, type OrgId } from '../lib/ids.ts';
import { type AuditEntry, AuditMacs } from './macs.ts';
import {
  findFirstSealed,
  findHead,
  insertEntry,
  listSealed,
  listUnsealed,
  lockWaitingHeads,
  refuseEntries,
  type Sealed,
  takeWaiting,
  writeSeals,
} from './store.ts';
import { wakeSealer } from './wake.ts';

export interface SealedBatch {
  readonly sealed: number;
  /** Those whose own MAC did not fit. */
  readonly refused: readonly AuditId[];
}

export interface Verdict {
  /** In the chain, up to where it is whole. */
  readonly entries: number;
  /** The number of the first entry that does not fit; null: the chain is whole. */
  readonly broken_at: number | null;
  /** Not in the chain yet, under their own MACs. */
  readonly unsealed: number;
  /** The first entry outside of the chain whose own MAC does not fit. */
  readonly altered: AuditId | null;
}

export class AuditLog {
  readonly #macs: AuditMacs;

  constructor(secret_key: Buffer) {
    this.#macs = new AuditMacs(secret_key);
  }

  async append(tx: Tx, org_id: OrgId, entry: AuditEntry): Promise<void> {
    const written = { ...entry, org_id, id: newId('aud'), at: rfc3339(new Date()) };
    await insertEntry(tx, written, this.#macs.own(written));
    afterCommit(tx, wakeSealer);
  }

  /**
   * Puts up to `limit` waiting entries into their chains, those excepted that another sealer is at, in one transaction:
   * all or nothing, so a sealer may die at any time.
   */
  async seal(db: Db, limit: number): Promise<SealedBatch> {
    return transaction(db, async (tx) => {
      const heads = new Map((await lockWaitingHeads(tx, limit)).map((head) => [head.org_id, head]));
      if (heads.size === 0) return { sealed: 0, refused: [] };
      const seals: Sealed[] = [];
      const refused: AuditId[] = [];
      for (const entry of await takeWaiting(tx, [...heads.keys()], limit)) {
        const head = heads.get(entry.org_id);
        const seq = (head?.seq ?? 0) + 1;
        const mac = head ? this.#macs.chainedAfter(head.mac, seq, entry, entry.mac) : null;
        if (!head || !mac) {
          refused.push(entry.id);
          continue;
        }
        heads.set(entry.org_id, { ...head, seq, mac });
        seals.push({ org_id: entry.org_id, id: entry.id, seq, mac });
      }
      await refuseEntries(tx, [...heads.keys()], refused);
      await writeSeals(tx, seals, [...heads.values()]);
      return { sealed: seals.length, refused };
    });
  }

  /** Walks the chain of an organisation, then what is not sealed yet, as they were at one moment. Changes nothing. */
  async verify(db: Db, org_id: OrgId): Promise<Verdict> {
    return db
      .transaction()
      .setIsolationLevel('repeatable read')
      .execute(async (tx) => ({
        ...(await this.#verifyChain(tx, org_id)),
        ...(await this.#verifyUnsealed(tx, org_id)),
      }));
  }

  /** Whether what is chained already was chained with this key; null: nothing is. */
  async beganWithThisKey(tx: Tx): Promise<boolean | null> {
    const first = await findFirstSealed(tx);
    return first === undefined ? null : this.#macs.chained(Buffer.alloc(0), 1, first).equals(first.mac);
  }

  async #verifyChain(tx: Tx, org_id: OrgId): Promise<Pick<Verdict, 'entries' | 'broken_at'>> {
    let previous: Buffer = Buffer.alloc(0);
    let seq = 0;
    for await (const entry of listSealed(tx, org_id)) {
      seq += 1;
      const mac = this.#macs.chained(previous, seq, entry);
      if (entry.seq !== seq || !mac.equals(entry.mac)) return { entries: seq - 1, broken_at: seq };
      previous = mac;
    }
    const head = await findHead(tx, org_id);
    const whole = head ? head.seq === seq && head.mac.equals(previous) : seq === 0;
    return { entries: seq, broken_at: whole ? null : seq + 1 };
  }

  async #verifyUnsealed(tx: Tx, org_id: OrgId): Promise<Pick<Verdict, 'unsealed' | 'altered'>> {
    let unsealed = 0;
    for await (const entry of listUnsealed(tx, org_id)) {
      if (entry.refused || !this.#macs.own(entry).equals(entry.mac)) return { unsealed, altered: entry.id };
      unsealed += 1;
    }
    return { unsealed, altered: null };
  }
}
