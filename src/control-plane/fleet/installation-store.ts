import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';

/** The root key, each time sealed with another secret key. */
export interface RootKeyCopies {
  readonly root_key: Buffer;
  /** Null: the secret key is not being replaced. */
  readonly new_root_key: Buffer | null;
}

/** Of several that are made at the same time, the first stays. */
export async function insertRootKey(tx: Tx, root_key: Buffer): Promise<void> {
  await tx
    .insertInto('installation')
    .values({
      ...{ root_key, new_root_key: null, hosts_certificate: null, hosts_key: null },
      ...{ next_certificate: null, next_key: null, next_told_at: null },
    })
    .onConflict((conflict) => conflict.column('only_one').doNothing())
    .execute();
}

/** Undefined before the first start. */
export async function findRootKeyCopies(tx: Tx): Promise<RootKeyCopies | undefined> {
  return rootKeyCopies(tx).executeTakeFirst();
}

/** The same, and no other transaction changes them meanwhile. */
export async function lockRootKeyCopies(tx: Tx): Promise<RootKeyCopies | undefined> {
  return rootKeyCopies(tx).forUpdate().executeTakeFirst();
}

const rootKeyCopies = (tx: Tx) => tx.selectFrom('installation').select(['root_key', 'new_root_key']);

export async function updateRootKeyCopies(tx: Tx, copies: RootKeyCopies): Promise<void> {
  await tx.updateTable('installation').set(copies).execute();
}

export interface KeptCertificate {
  /** PEM. */
  readonly certificate: string;
  readonly sealed_key: Buffer;
}

export interface NextCertificate extends KeptCertificate {
  /** For how long control planes have told hosts and ingresses of it. */
  readonly told_seconds: number;
}

export interface KeptCertificates {
  /** Null: no control plane has listened to hosts yet. */
  readonly present: KeptCertificate | null;
  /** What replaces it. Null: it is not being replaced. */
  readonly next: NextCertificate | null;
}

export async function findCertificates(tx: Tx): Promise<KeptCertificates> {
  const row = await tx
    .selectFrom('installation')
    .select(['hosts_certificate', 'hosts_key', 'next_certificate', 'next_key', 'next_told_seconds'])
    .executeTakeFirst();
  const kept = (certificate: string | null = null, sealed_key: Buffer | null = null) =>
    certificate === null || sealed_key === null ? null : { certificate, sealed_key };
  const next = kept(row?.next_certificate, row?.next_key);
  return {
    present: kept(row?.hosts_certificate, row?.hosts_key),
    next: next && { ...next, told_seconds: row?.next_told_seconds ?? 0 },
  };
}

/** Of several that are made at the same time, the first stays. */
export async function keepFirstCertificate(
  tx: Tx,
  { certificate, sealed_key }: KeptCertificate,
): Promise<void> {
  await tx
    .updateTable('installation')
    .set({ hosts_certificate: certificate, hosts_key: sealed_key })
    .where('hosts_certificate', 'is', null)
    .execute();
}

/** False: another one is to replace the present one already. */
export async function keepNextCertificate(
  tx: Tx,
  { certificate, sealed_key }: KeptCertificate,
): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable('installation')
    .set({ next_certificate: certificate, next_key: sealed_key })
    .where('hosts_certificate', 'is not', null)
    .where('next_certificate', 'is', null)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** The next certificate is the only one from now on. */
export async function replaceCertificate(tx: Tx, next: string): Promise<void> {
  await tx
    .updateTable('installation')
    .set((eb) => ({
      ...{ hosts_certificate: eb.ref('next_certificate'), hosts_key: eb.ref('next_key') },
      ...{ next_certificate: null, next_key: null, next_told_at: null, next_told_seconds: 0 },
    }))
    .where('next_certificate', '=', next)
    .execute();
}

/** A control plane tells hosts of it, as it says every few seconds. A longer gap counts as one of 5 s. */
export async function noteCertificateTold(tx: Tx, next: string): Promise<void> {
  await tx
    .updateTable('installation')
    .set({
      next_told_at: sql`now()`,
      next_told_seconds: sql`next_told_seconds + least(coalesce(extract(epoch from now() - next_told_at), 0), 5)`,
    })
    .where('next_certificate', '=', next)
    .execute();
}
