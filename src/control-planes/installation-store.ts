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
    .values({ root_key, new_root_key: null, hosts_certificate: null, hosts_key: null })
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

export async function findHostsCertificate(tx: Tx): Promise<KeptCertificate | null> {
  const row = await tx
    .selectFrom('installation')
    .select(['hosts_certificate', 'hosts_key'])
    .executeTakeFirst();
  if (!row?.hosts_certificate || !row.hosts_key) return null;
  return { certificate: row.hosts_certificate, sealed_key: row.hosts_key };
}

/** Of several that are made at the same time, the first stays. */
export async function keepHostsCertificate(
  tx: Tx,
  { certificate, sealed_key }: KeptCertificate,
): Promise<void> {
  await tx
    .updateTable('installation')
    .set({ hosts_certificate: certificate, hosts_key: sealed_key })
    .where('hosts_certificate', 'is', null)
    .execute();
}
