/** Open streams and consoles, by organisation and control plane. */
import { sql } from 'kysely';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** A control plane says every 2 s that it lives. One that was not seen for so long counts as ended; before that, it may have. */
const LIVE_SECONDS = 6;
const SILENT_SECONDS = 3;

const seenWithin = (seconds: number) => sql`seen_at > now() - make_interval(secs => ${sql.lit(seconds)})`;

/** A condition on rows of `open_streams`: their control plane lives. */
export const isSeen = seenWithin(LIVE_SECONDS);

/** Adds to the number that the control plane holds for the organisation. */
export async function addStreams(tx: Tx, control_plane: string, org_id: OrgId, more: 1 | -1): Promise<void> {
  await sql`
    insert into open_streams as s (org_id, control_plane, count) values (${org_id}, ${control_plane}, ${Math.max(0, more)})
    on conflict (org_id, control_plane) do update set count = greatest(0, s.count + ${more}), seen_at = now()`.execute(
    tx,
  );
}

/** The control plane lives, and holds exactly these of the named organisations. */
export async function renewStreams(
  tx: Tx,
  control_plane: string,
  held: ReadonlyMap<OrgId, number>,
): Promise<void> {
  await sql`
    insert into open_streams (org_id, control_plane, count)
    select org_id, ${control_plane}, count
    from unnest(${[...held.keys()]}::text[], ${[...held.values()]}::integer[]) as held (org_id, count) order by org_id
    on conflict (org_id, control_plane) do update set count = excluded.count, seen_at = now()`.execute(tx);
}

/** Whether streams of the organisation count that may be of a control plane that has just ended. */
export async function hasSilentStreams(tx: Tx, org_id: OrgId): Promise<boolean> {
  const { rows } = await sql`
    select from open_streams
    where org_id = ${org_id} and count > 0 and ${isSeen} and not ${seenWithin(SILENT_SECONDS)} limit 1`.execute(
    tx,
  );
  return rows.length > 0;
}

export async function deleteStreamsOf(tx: Tx, control_plane: string): Promise<void> {
  await tx.deleteFrom('open_streams').where('control_plane', '=', control_plane).execute();
}

/** For the sweep: of control planes that have ended, and of organisations that have none open. */
export async function deleteUnseenStreams(tx: Tx): Promise<void> {
  await sql`delete from open_streams where seen_at < now() - interval '1 minute'`.execute(tx);
}
