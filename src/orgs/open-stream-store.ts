/** Open streams and consoles, by organisation and control plane. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { OrgId } from '../lib/ids.ts';

/** One that was not seen for so long counts as ended. */
const LIVE_SECONDS = 6;

/** A condition on rows of `open_streams`: their control plane lives. */
export const isSeen = sql`seen_at > now() - make_interval(secs => ${sql.lit(LIVE_SECONDS)})`;

/** Adds to the number that the control plane holds for the organisation. */
export async function addStreams(tx: Tx, control_plane: string, org_id: OrgId, more: 1 | -1): Promise<void> {
  await sql`
    insert into open_streams as s (org_id, control_plane, count) values (${org_id}, ${control_plane}, ${Math.max(0, more)})
    on conflict (org_id, control_plane) do update set count = greatest(0, s.count + ${more}), seen_at = now()`.execute(
    tx,
  );
}

/** Says that the control plane holds these still. Their numbers are set for `unsure` ones, and where the database has forgotten them. */
export async function renewStreams(
  tx: Tx,
  control_plane: string,
  held: ReadonlyMap<OrgId, number>,
  unsure: ReadonlySet<OrgId>,
): Promise<void> {
  await sql`
    insert into open_streams as s (org_id, control_plane, count)
    select org_id, ${control_plane}, count from unnest(${[...held.keys()]}::text[], ${[...held.values()]}::integer[]) as held (org_id, count)
    on conflict (org_id, control_plane) do update set seen_at = now(),
      count = case when s.org_id = any(${[...unsure]}::text[]) then excluded.count else s.count end`.execute(
    tx,
  );
}

export async function deleteStreamsOf(tx: Tx, control_plane: string): Promise<void> {
  await tx.deleteFrom('open_streams').where('control_plane', '=', control_plane).execute();
}

/** For the sweep: of control planes that have ended, and of organisations that have none open. */
export async function deleteUnseenStreams(tx: Tx): Promise<void> {
  await sql`delete from open_streams where seen_at < now() - interval '1 minute'`.execute(tx);
}
