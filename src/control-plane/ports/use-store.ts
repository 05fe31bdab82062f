/** What the ingress reported of the use of HTTP ports. */
import { sql } from 'kysely';
import type { HttpReport } from '../../protocol/http-port-types.ts';
import type { Tx } from '../db/pool.ts';

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
