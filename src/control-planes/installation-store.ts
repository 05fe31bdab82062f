import type { Tx } from '../db/pool.ts';

/** Keeps the first value that is given, and returns the one that is kept. */
export async function keepKeyCheck(tx: Tx, key_check: Buffer): Promise<Buffer> {
  await tx
    .insertInto('installation')
    .values({ key_check, hosts_certificate: null, hosts_key: null })
    .onConflict((conflict) => conflict.column('only_one').doNothing())
    .execute();
  return (await tx.selectFrom('installation').select('key_check').executeTakeFirstOrThrow()).key_check;
}

/** Undefined before the first start. */
export async function findKeyCheck(tx: Tx): Promise<Buffer | undefined> {
  return (await tx.selectFrom('installation').select('key_check').executeTakeFirst())?.key_check;
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
