/**
 * SQL of `control_planes`, `ingresses` and `installation`: which control planes live, the tokens and states of
 * ingresses, the sealed copies of the root key, and the certificates that hosts pin. The database's clock decides
 * whether a control plane or an ingress still lives.
 */
import { sql } from 'kysely';
import { type HostId, type IngressId, newId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** One that was not seen for so long counts as ended. */
const LIVE_SECONDS = 15;

export interface ControlPlane {
  readonly id: string;
  readonly url: string;
  readonly fingerprint: string;
}

/** Inserts it, or says that it lives. */
export async function noteAlive(tx: Tx, { id, url, fingerprint }: ControlPlane): Promise<void> {
  await tx
    .insertInto('control_planes')
    .values({ id, url, fingerprint })
    .onConflict((conflict) => conflict.column('id').doUpdateSet({ seen_at: sql`now()` }))
    .execute();
}

/** Those that ended without saying so, and the earlier processes at this address. */
export async function deleteEnded(tx: Tx, { id, url }: ControlPlane): Promise<void> {
  await tx
    .deleteFrom('control_planes')
    .where('id', '!=', id)
    .where((eb) => eb.or([eb('url', '=', url), eb.not(isLive())]))
    .execute();
}

export async function deleteControlPlane(tx: Tx, id: string): Promise<void> {
  await tx.deleteFrom('control_planes').where('id', '=', id).execute();
}

export async function listLive(tx: Tx): Promise<ControlPlane[]> {
  return tx
    .selectFrom('control_planes')
    .select(['id', 'url', 'fingerprint'])
    .where(isLive())
    .orderBy('started_at')
    .orderBy('id')
    .execute();
}

const isLive = () => sql<boolean>`seen_at > now() - make_interval(secs => ${LIVE_SECONDS})`;

// The ingresses of the installation: their tokens, and since when each has watched the connections to instances.

/** An ingress that has not reported for this long is silent: it may have connections that it could not report. */
export const INGRESS_SILENT_S = 20;
/** After this long it is dead: its connections have ended, and idle stops no longer wait for it. */
export const INGRESS_DEAD_S = 300;

export async function findIngressByToken(tx: Tx, token_hash: Buffer) {
  return tx
    .selectFrom('ingresses')
    .select(['id', 'host_id', 'protocol'])
    .where('token_hash', '=', token_hash)
    .executeTakeFirst();
}

export async function setIngressProtocol(tx: Tx, id: IngressId, protocol: number): Promise<void> {
  await tx.updateTable('ingresses').set({ protocol }).where('id', '=', id).execute();
}

/** Inserts the ingress beside a host of a control plane's machine, or replaces its token. */
export async function upsertLocalIngress(
  tx: Tx,
  name: string,
  token_hash: Buffer,
  host_id: HostId,
): Promise<void> {
  await tx
    .insertInto('ingresses')
    .values({ id: newId('ing'), name, token_hash, host_id })
    .onConflict((conflict) => conflict.column('name').doUpdateSet({ token_hash, host_id }))
    .execute();
}

/** Null when the name is taken. */
export async function insertIngress(tx: Tx, name: string, token_hash: Buffer): Promise<IngressId | null> {
  const row = await tx
    .insertInto('ingresses')
    .values({ id: newId('ing'), name, token_hash, host_id: null })
    .onConflict((conflict) => conflict.column('name').doNothing())
    .returning('id')
    .executeTakeFirst();
  return row?.id ?? null;
}

/** Revokes the token of an ingress on another machine. Undefined when there is none of that name. */
export async function deleteIngress(tx: Tx, name: string): Promise<IngressId | undefined> {
  const row = await tx
    .deleteFrom('ingresses')
    .where('name', '=', name)
    .where('host_id', 'is', null)
    .returning('id')
    .executeTakeFirst();
  return row?.id;
}

export interface KnownIngress {
  readonly id: IngressId;
  readonly name: string;
  readonly host_id: HostId | null;
  readonly protocol: number | null;
  readonly watching_since: Date | null;
  readonly reported_at: Date | null;
  readonly state: 'expected' | 'up' | 'silent' | 'dead';
}

/** By name. That of a machine which runs only a control plane never reports, and is left out. */
export async function listIngresses(tx: Tx): Promise<KnownIngress[]> {
  const { rows } = await sql<KnownIngress>`
    select id, name, host_id, protocol, watching_since, reported_at,
      case
        when reported_at is null then 'expected'
        when reported_at > now() - make_interval(secs => ${INGRESS_SILENT_S}) then 'up'
        when reported_at > now() - make_interval(secs => ${INGRESS_DEAD_S}) then 'silent'
        else 'dead'
      end as state
    from ingresses where host_id is null or reported_at is not null order by name`.execute(tx);
  return rows;
}

/** The ingress has counted connections without a gap for `watched_ms`. */
export async function recordWatch(tx: Tx, id: IngressId, watched_ms: number): Promise<void> {
  await sql`
    update ingresses
    set watching_since = now() - make_interval(secs => ${watched_ms / 1000}::float8), reported_at = now()
    where id = ${id}`.execute(tx);
}

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
      ...{ next_certificate: null, next_key: null, next_announced_at: null },
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
  readonly announced_seconds: number;
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
    .select(['hosts_certificate', 'hosts_key', 'next_certificate', 'next_key', 'next_announced_seconds'])
    .executeTakeFirst();
  const kept = (certificate: string | null = null, sealed_key: Buffer | null = null) =>
    certificate === null || sealed_key === null ? null : { certificate, sealed_key };
  const next = kept(row?.next_certificate, row?.next_key);
  return {
    present: kept(row?.hosts_certificate, row?.hosts_key),
    next: next && { ...next, announced_seconds: row?.next_announced_seconds ?? 0 },
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
      ...{ next_certificate: null, next_key: null, next_announced_at: null, next_announced_seconds: 0 },
    }))
    .where('next_certificate', '=', next)
    .execute();
}

/** A control plane tells hosts of it, as it says every few seconds. A longer gap counts as one of 5 s. */
export async function recordCertificateAnnounced(tx: Tx, next: string): Promise<void> {
  await tx
    .updateTable('installation')
    .set({
      next_announced_at: sql`now()`,
      next_announced_seconds: sql`next_announced_seconds + least(coalesce(extract(epoch from now() - next_announced_at), 0), 5)`,
    })
    .where('next_certificate', '=', next)
    .execute();
}
