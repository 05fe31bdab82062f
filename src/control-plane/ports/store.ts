/**
 * SQL of HTTP ports: the ports, their custom hostnames, the tickets and cookies of browsers, reported use, and the
 * routes that ingresses get.
 */
import { sql } from 'kysely';
import type { HttpReport, HttpRoute } from '../../protocol/ingress-types.ts';
import type { HostId, HttpPortId, InstanceId, SessionId } from '../../shared/ids.ts';
import type { PortAccess } from '../db/column-types.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import { COOKIE_SECONDS, type HttpEndpoint, hostnameOf, PORT_TICKET_SECONDS } from './model.ts';

export type PortRow = NonNullable<Awaited<ReturnType<typeof findPort>>>;

export interface HostnameRow {
  readonly hostname: string;
  readonly proof: string;
  readonly active: boolean;
  readonly checked_at: string | null;
  readonly problem: string | null;
}

const HOSTNAMES = sql<readonly HostnameRow[]>`coalesce((
  select json_agg(json_build_object('hostname', h.hostname, 'proof', h.proof, 'active', h.active_at is not null,
    'checked_at', h.checked_at, 'problem', h.problem) order by h.created_at, h.hostname)
  from http_hostnames h where h.port_id = p.id), '[]')`;

function ports(tx: Tx) {
  return tx
    .selectFrom('http_ports as p')
    .leftJoin('http_port_use as u', 'u.port_id', 'p.id')
    .select([
      'p.id',
      'p.instance_id',
      'p.label',
      'p.port',
      'p.access',
      'p.version',
      'p.created_at',
      'p.updated_at',
      'u.minute',
      'u.requests',
      'u.previous_requests',
      'u.last_error',
    ])
    .select(HOSTNAMES.as('hostnames'));
}

export async function listPorts(tx: Tx, instance_id: InstanceId, before: string | null, limit: number) {
  let query = ports(tx).where('p.instance_id', '=', instance_id);
  if (before !== null) query = query.where('p.id', '<', before as HttpPortId);
  return query.orderBy('p.id', 'desc').limit(limit).execute();
}

export async function findPort(tx: Tx, instance_id: InstanceId, id: HttpPortId) {
  return ports(tx).where('p.instance_id', '=', instance_id).where('p.id', '=', id).executeTakeFirst();
}

export async function countPorts(tx: Tx, instance_id: InstanceId): Promise<number> {
  const { count } = await tx
    .selectFrom('http_ports')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('instance_id', '=', instance_id)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** False: some port has had this label. */
export async function claimLabel(tx: Tx, label: string): Promise<boolean> {
  const row = await tx
    .insertInto('http_labels')
    .values({ label })
    .onConflict((conflict) => conflict.doNothing())
    .returning('label')
    .executeTakeFirst();
  return row !== undefined;
}

export interface NewPort {
  readonly id: HttpPortId;
  readonly instance_id: InstanceId;
  readonly label: string;
  readonly port: number;
  readonly access: PortAccess;
}

export async function insertPort(tx: Tx, port: NewPort): Promise<void> {
  const now = sql<Date>`date_trunc('milliseconds', now())`;
  await tx
    .insertInto('http_ports')
    .values({ ...port, created_at: now, updated_at: now })
    .execute();
}

export async function setAccess(tx: Tx, id: HttpPortId, access: PortAccess): Promise<void> {
  await tx
    .updateTable('http_ports')
    .set({ access, ...CHANGED })
    .where('id', '=', id)
    .execute();
}

const CHANGED = {
  version: sql<number>`version + 1`,
  updated_at: sql<Date>`date_trunc('milliseconds', now())`,
} as const;

/** Of its hostnames. */
export async function markChanged(tx: Tx, id: HttpPortId): Promise<void> {
  await tx.updateTable('http_ports').set(CHANGED).where('id', '=', id).execute();
}

export async function deletePort(tx: Tx, id: HttpPortId): Promise<void> {
  await tx.deleteFrom('http_ports').where('id', '=', id).execute();
}

// Custom hostnames of HTTP ports, and the checks of their TXT records.

/** False: the port has it already. */
export async function insertHostname(
  tx: Tx,
  port_id: HttpPortId,
  hostname: string,
  proof: string,
): Promise<boolean> {
  const row = await tx
    .insertInto('http_hostnames')
    .values({ port_id, hostname, proof })
    .onConflict((conflict) => conflict.doNothing())
    .returning('hostname')
    .executeTakeFirst();
  return row !== undefined;
}

export async function deleteHostname(tx: Tx, port_id: HttpPortId, hostname: string): Promise<void> {
  await tx
    .deleteFrom('http_hostnames')
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .execute();
}

export interface DueHostname {
  readonly port_id: HttpPortId;
  readonly hostname: string;
  readonly proof: string;
  readonly active: boolean;
  readonly age_s: number;
}

/** Those whose next check is due, the longest overdue first; of each organisation in turn, so that none with many holds up the others. */
export async function listDueHostnames(tx: Tx, limit: number): Promise<DueHostname[]> {
  const { rows } = await sql<DueHostname>`
    select h.port_id, h.hostname, h.proof, h.active_at is not null as active,
      extract(epoch from now() - h.created_at)::float8 as age_s
    from http_hostnames h join http_ports p on p.id = h.port_id join instances i on i.id = p.instance_id
    where h.next_check_at <= now() and not i.deleting
    order by row_number() over (partition by i.org_id order by h.next_check_at), h.next_check_at
    limit ${limit}`.execute(tx);
  return rows;
}

/** Undefined: the port is gone, or its instance is being deleted. */
export async function findInstanceOfPort(tx: Tx, port_id: HttpPortId) {
  return tx
    .selectFrom('http_ports as p')
    .innerJoin('instances as i', 'i.id', 'p.instance_id')
    .select(['p.instance_id', 'i.org_id'])
    .where('p.id', '=', port_id)
    .where('i.deleting', '=', false)
    .executeTakeFirst();
}

/** The port where it is active. */
export async function activeOwner(tx: Tx, hostname: string): Promise<HttpPortId | null> {
  const row = await tx
    .selectFrom('http_hostnames')
    .select('port_id')
    .where('hostname', '=', hostname)
    .where('active_at', 'is not', null)
    .executeTakeFirst();
  return row?.port_id ?? null;
}

/** Records a check that changes nothing else. */
export async function recordCheck(
  tx: Tx,
  { port_id, hostname }: Pick<DueHostname, 'port_id' | 'hostname'>,
  problem: string | null,
  next_s: number,
): Promise<void> {
  await tx
    .updateTable('http_hostnames')
    .set({ checked_at: NOW, problem, next_check_at: after(next_s) })
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .execute();
}

/** Makes it active, or pending again. False: it is gone, or was so already. */
export async function setActive(
  tx: Tx,
  { port_id, hostname }: Pick<DueHostname, 'port_id' | 'hostname'>,
  active: boolean,
): Promise<boolean> {
  const row = await tx
    .updateTable('http_hostnames')
    .set({ active_at: active ? NOW : null })
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .where('active_at', active ? 'is' : 'is not', null)
    .returning('hostname')
    .executeTakeFirst();
  return row !== undefined;
}

/** Its next check is due now. */
export async function hurryCheck(tx: Tx, port_id: HttpPortId, hostname: string): Promise<void> {
  await tx
    .updateTable('http_hostnames')
    .set({ next_check_at: sql<Date>`now()` })
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .execute();
}

const NOW = sql<Date>`date_trunc('milliseconds', now())`;
const after = (seconds: number) => sql<Date>`now() + make_interval(secs => ${seconds})`;

// Tickets and cookies of browsers, and what a request to a private port is judged by.

/** Of one session at one port. The oldest go. */
const COOKIES_MAX = 20;

export type NewPortTicket = Omit<Database['http_tickets'], 'expires_at'>;

export async function insertPortTicket(tx: Tx, ticket: NewPortTicket): Promise<{ expires_at: Date }> {
  const expires_at = sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${PORT_TICKET_SECONDS})`;
  return tx
    .insertInto('http_tickets')
    .values({ ...ticket, expires_at })
    .returning('expires_at')
    .executeTakeFirstOrThrow();
}

/** Consumes the ticket. Undefined when the hostname has no such unexpired ticket. */
export async function takePortTicket(tx: Tx, hostname: string, ticket_hash: Buffer) {
  return tx
    .deleteFrom('http_tickets')
    .where('ticket_hash', '=', ticket_hash)
    .where('hostname', '=', hostname)
    .where('expires_at', '>', sql<Date>`now()`)
    .returning(['port_id', 'hostname', 'session_id', 'org_id'])
    .executeTakeFirst();
}

export async function insertCookie(
  tx: Tx,
  cookie_hash: Buffer,
  holder: Omit<NewPortTicket, 'ticket_hash'>,
): Promise<void> {
  const expires_at = sql<Date>`now() + make_interval(secs => ${COOKIE_SECONDS})`;
  await tx
    .insertInto('http_cookies')
    .values({ cookie_hash, ...holder, expires_at })
    .execute();
  await dropOldCookies(tx, holder.session_id, holder.port_id);
}

async function dropOldCookies(tx: Tx, session_id: SessionId, port_id: HttpPortId): Promise<void> {
  await sql`
    delete from http_cookies where cookie_hash in (
      select cookie_hash from http_cookies where session_id = ${session_id} and port_id = ${port_id}
      order by created_at desc offset ${COOKIES_MAX})`.execute(tx);
}

export async function findCookie(tx: Tx, port_id: HttpPortId, hostname: string, cookie_hash: Buffer) {
  return tx
    .selectFrom('http_cookies')
    .select(['session_id', 'org_id'])
    .where('cookie_hash', '=', cookie_hash)
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .where('expires_at', '>', sql<Date>`now()`)
    .executeTakeFirst();
}

/** The port with what access to it depends on. Undefined: it or its instance is gone. */
export async function findServed(tx: Tx, port_id: HttpPortId) {
  return tx
    .selectFrom('http_ports as p')
    .innerJoin('instances as i', 'i.id', 'p.instance_id')
    .select(['p.label', 'p.access', 'i.org_id'])
    .where('p.id', '=', port_id)
    .where('i.deleting', '=', false)
    .executeTakeFirst();
}

/** For the sweep. */
export async function deleteExpiredAccess(tx: Tx): Promise<void> {
  await tx.deleteFrom('http_tickets').where('expires_at', '<', sql<Date>`now()`).execute();
  await tx.deleteFrom('http_cookies').where('expires_at', '<', sql<Date>`now()`).execute();
}

// What the ingress reported of the use of HTTP ports.

/** Adds to the present minute of each port. Ports that are gone are left out. */
export async function recordUse(tx: Tx, { ports }: Pick<HttpReport, 'ports'>): Promise<void> {
  if (ports.length === 0) return;
  await sql`
    with reported as (
      select port_id, requests, sent, received, last_error::jsonb as last_error,
        date_trunc('minute', now()) as minute
      from unnest(
        ${ports.map((each) => each.port_id)}::text[], ${ports.map((each) => each.requests)}::bigint[],
        ${ports.map((each) => each.sent_bytes)}::bigint[], ${ports.map((each) => each.received_bytes)}::bigint[],
        ${ports.map(({ last_error }) => last_error && JSON.stringify(last_error))}::text[]
      ) as reported (port_id, requests, sent, received, last_error)
    )
    insert into http_port_use as u
      (port_id, minute, requests, previous_requests, sent_bytes, received_bytes, last_error)
    select r.port_id, r.minute, r.requests, 0, r.sent, r.received, r.last_error
    from reported r join http_ports p on p.id = r.port_id
    on conflict (port_id) do update set
      minute = excluded.minute,
      requests = excluded.requests + case when u.minute = excluded.minute then u.requests else 0 end,
      previous_requests = case
        when u.minute = excluded.minute then u.previous_requests
        when u.minute = excluded.minute - interval '1 minute' then u.requests
        else 0 end,
      sent_bytes = u.sent_bytes + excluded.sent_bytes,
      received_bytes = u.received_bytes + excluded.received_bytes,
      last_error = coalesce(excluded.last_error, u.last_error)`.execute(tx);
}

// The routes of HTTP ports, for the ingress.

interface Row {
  readonly id: HttpPortId;
  readonly instance_id: InstanceId;
  readonly label: string;
  readonly custom: readonly string[];
  readonly port: number;
  readonly access: PortAccess;
  readonly wake_on_connect: boolean;
  readonly moving: boolean | null;
  readonly state: string | null;
  readonly resets: number | null;
  readonly host_id: HostId | null;
}

/**
 * Of `only` these instances; null: of all. `near`: the host whose VMs the ingress dials itself. It reaches all others by a tunnel
 * through their agents.
 */
export async function listHttpRoutes(
  tx: Tx,
  endpoint: HttpEndpoint,
  near: HostId | null,
  only: readonly InstanceId[] | null = null,
): Promise<HttpRoute[]> {
  const { rows } = await sql<Row>`
    select p.id, p.instance_id, p.label, p.port, p.access, i.wake_on_connect, v.state, v.resets, v.host_id, v.moving,
      array(select h.hostname from http_hostnames h
        where h.port_id = p.id and h.active_at is not null order by h.hostname) as custom
    from http_ports p
    join instances i on i.id = p.instance_id and not i.deleting
    left join lateral (
      select state, resets, host_id,
        -- As isMoving in control-plane/vms/model.ts.
        move is not null or (state = 'starting' and reason_code = 'host_drain') as moving
      from vms where instance_id = i.id order by boot desc limit 1
    ) v on true
    ${only === null ? sql`` : sql`where p.instance_id = any(${[...only]}::text[])`}
    order by p.id`.execute(tx);
  return rows.map((row) => {
    // A guest that restarts accepts nothing new: requests wait for its end.
    const reachable = row.state === 'running';
    return {
      port_id: row.id,
      instance_id: row.instance_id,
      hostnames: [hostnameOf(endpoint, row.label), ...row.custom],
      port: row.port,
      access: row.access,
      target: reachable ? (near !== null && row.host_id === near ? 'local' : 'tunnel') : null,
      resets: row.resets ?? 0,
      // A request does not start a failed VM: it would fail again and again.
      wake: (row.wake_on_connect || row.moving === true) && row.state !== 'failed',
    };
  });
}
