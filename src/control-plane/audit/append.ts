/**
 * Owns the audit log: who did what, when and from where. `AuditLog` appends, seals and verifies entries.
 *
 *   written ── COMMIT of its transaction ──▶ unsealed ── the task `seal-audit`, within 250 ms ──▶ sealed
 *
 * An entry is inserted in the transaction that it records, with a MAC of this entry alone. The sealer then numbers the
 * entry and replaces this MAC by one that also covers the MAC of the entry before. Why sealing is a second step: ADR
 * 54. `berth audit verify` finds every entry that was changed or inserted, and every sealed entry that was removed or
 * moved. It cannot find the removal of an unsealed entry, or of the newest entries together with the row in
 * `audit_heads`.
 *
 * Invariants: one sealer works at a time; each organisation's numbers have no gap. Formulas: seal-audit.ts.
 */
import { rfc3339 } from '../../shared/clock.ts';
import { Signal } from '../../shared/concurrency.ts';
import { type AuditId, newId, type OrgId } from '../../shared/ids.ts';
import { afterCommit, type Db, type Tx, transaction } from '../db/pool.ts';
import { type AuditEntry, AuditMacs, NO_MAC } from './seal-audit.ts';
import {
  findHead,
  type Head,
  insertEntry,
  listHeads,
  listSealed,
  listUnsealed,
  listUnsealedMacs,
  lockSealer,
  writeSeals,
} from './store.ts';

/** In JSON. */
const VALUE_MAX_CHARACTERS = 2_000;

/**
 * An entry's data, with the length in place of each value that is too long: entries are kept for good. Of an object, such as the
 * fields that were changed, each value is judged apart.
 */
export function shortened(data: Record<string, unknown>): Record<string, unknown> {
  return mapped(data, (value) =>
    isObject(value) && isLong(value) ? mapped(value, lengthIfLong) : lengthIfLong(value),
  );
}

function lengthIfLong(value: unknown): unknown {
  return isLong(value) ? `(${JSON.stringify(value).length} characters)` : value;
}

function isLong(value: unknown): boolean {
  return (JSON.stringify(value)?.length ?? 0) > VALUE_MAX_CHARACTERS;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function mapped(data: Record<string, unknown>, change: (value: unknown) => unknown): Record<string, unknown> {
  return Object.fromEntries(Object.entries(data).map(([key, value]) => [key, change(value)]));
}

/** Wakes this process's sealer after the commit of an audit entry, as events/append.ts wakes the dispatcher. */
const committed = new Signal();
const wakeSealer = committed.notify;

/** Calls `wake` after each commit of an audit entry in this process. Returns the function that unsubscribes. */
export const onAuditCommitted = committed.subscribe;

export interface ChainVerdict {
  /** How many entries of the chain fit, from its beginning. */
  readonly entries: number;
  /** The number of the first entry that does not fit; null: the chain is whole. */
  readonly broken_at: number | null;
  /** How many entries are not in the chain yet, and fit their own MACs. */
  readonly unsealed: number;
  /** The first unsealed entry that does not fit its own MAC. */
  readonly altered: AuditId | null;
}

export class AuditLog {
  readonly #macs: AuditMacs;

  constructor(root_key: Buffer) {
    this.#macs = new AuditMacs(root_key);
  }

  async append(tx: Tx, org_id: OrgId, entry: AuditEntry): Promise<void> {
    const data = shortened(entry.data);
    const written = { ...entry, data, org_id, id: newId('aud'), at: rfc3339(new Date()) };
    await insertEntry(tx, written, this.#macs.own(written));
    afterCommit(tx, wakeSealer);
  }

  /**
   * Seals up to `limit` entries in one transaction and returns how many. It does not check them: an entry that was
   * altered does not fit the chain either. Zero also if another sealer works.
   */
  async seal(db: Db, limit: number): Promise<number> {
    return transaction(db, async (tx) => {
      if (!(await lockSealer(tx))) return 0;
      const waiting = await listUnsealedMacs(tx, limit);
      const org_ids = [...new Set(waiting.map(({ org_id }) => org_id))];
      const heads = new Map((await listHeads(tx, org_ids)).map((head) => [head.org_id, head]));
      const sealed = waiting.map(({ org_id, id, mac: own }) => {
        const head: Head = heads.get(org_id) ?? { org_id, seq: 0, mac: NO_MAC };
        const seq = head.seq + 1;
        const mac = this.#macs.chained(head.mac, seq, own);
        heads.set(org_id, { org_id, seq, mac });
        return { org_id, id, seq, mac };
      });
      await writeSeals(tx, sealed, [...heads.values()]);
      return sealed.length;
    });
  }

  /** Checks an organisation's chain and its unsealed entries, as they were at one moment. */
  async verify(db: Db, org_id: OrgId): Promise<ChainVerdict> {
    return db
      .transaction()
      .setIsolationLevel('repeatable read')
      .execute(async (tx) => ({
        ...(await this.#verifyChain(tx, org_id)),
        ...(await this.#verifyUnsealed(tx, org_id)),
      }));
  }

  async #verifyChain(tx: Tx, org_id: OrgId): Promise<Pick<ChainVerdict, 'entries' | 'broken_at'>> {
    let previous = NO_MAC;
    let seq = 0;
    for await (const entry of listSealed(tx, org_id)) {
      seq += 1;
      const mac = this.#macs.chained(previous, seq, this.#macs.own(entry));
      if (entry.seq !== seq || !mac.equals(entry.mac)) return { entries: seq - 1, broken_at: seq };
      previous = mac;
    }
    const head = await findHead(tx, org_id);
    const whole = head ? head.seq === seq && head.mac.equals(previous) : seq === 0;
    return { entries: seq, broken_at: whole ? null : seq + 1 };
  }

  async #verifyUnsealed(tx: Tx, org_id: OrgId): Promise<Pick<ChainVerdict, 'unsealed' | 'altered'>> {
    let unsealed = 0;
    for await (const entry of listUnsealed(tx, org_id)) {
      if (!this.#macs.own(entry).equals(entry.mac)) return { unsealed, altered: entry.id };
      unsealed += 1;
    }
    return { unsealed, altered: null };
  }
}
