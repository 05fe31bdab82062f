/**
 * SQL that reads the assignments of a host: one for each instance that is placed there, with the guest's SSH keys and
 * secrets.
 */
import { sql } from 'kysely';
import type { SecretForHost, SecretsAuthority } from '../../protocol/host-types.ts';
import type { Assignment } from '../../protocol/types.ts';
import type { HostId, VmId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { authoritiesOf } from '../secrets/authority.ts';
import { secretsOf } from '../secrets/seal-value.ts';
import { allowedKeys } from '../ssh-keys/store.ts';

/** All assignments of a host, ordered by instance. */
export async function listAssignments(tx: Tx, sealer: Sealer, host_id: HostId): Promise<Assignment[]> {
  const rows = await assignedRows(tx, host_id);
  const ids = rows.map((row) => row.instance_id);
  const keys = await keyLines(tx, ids);
  const secrets = await secretsOf(tx, sealer, ids);
  const authorities = await authoritiesOf(tx, sealer, [...secrets.keys()]);
  return rows.map((row) => {
    const { instance_id, deleting } = row;
    // A host that only removes the instance needs neither keys nor secrets.
    if (deleting) return assignmentOf(row, NOTHING);
    return assignmentOf(row, {
      keys: keys.get(instance_id) ?? [],
      secrets: secrets.get(instance_id) ?? [],
      authority: authorities.get(instance_id),
    });
  });
}

type AssignedRow = Awaited<ReturnType<typeof assignedRows>>[number];

interface OfGuest {
  readonly keys: string[];
  readonly secrets: SecretForHost[];
  readonly authority: SecretsAuthority | undefined;
}

const NOTHING: OfGuest = { keys: [], secrets: [], authority: undefined };

function assignmentOf(row: AssignedRow, { keys, secrets, authority }: OfGuest): Assignment {
  return {
    instance_id: row.instance_id,
    vm_id: row.vm_id,
    boot: row.boot,
    epoch: row.epoch,
    desired: row.deleting ? 'deleted' : row.state === 'failed' ? 'failed' : row.desired,
    force: row.force,
    reboots: row.reboots,
    guest_ran: row.guest_ran,
    previous_failed: row.ran_and_failed || row.last_ran_state === 'failed',
    own_since: (row.last_elsewhere ?? 0) + 1,
    last_ran_epoch: row.guest_ran ? row.epoch : (row.last_here ?? 0),
    suspended: row.suspended_at !== null,
    resume: row.resume,
    user_data: row.user_data_given !== null,
    flush_id: row.flush_id,
    disk_grows: row.growth === 'next_boot',
    host_key_new: row.host_key_new,
    spec: {
      image: row.image,
      hostname: row.name,
      cpus: row.cpus,
      memory_mib: row.memory_mib,
      disk_bytes: row.disk_gib * 2 ** 30,
      slot: row.slot,
      auto_flush_seconds: row.auto_flush_seconds,
    },
    egress: { mode: row.egress_mode, allow: row.egress_allow },
    ...(secrets.length > 0 ? { secrets } : {}),
    ...(authority ? { secrets_authority: authority } : {}),
    authorized_keys: keys,
    // A deletion changes no VM.
    ...(row.trace_context && !row.deleting ? { trace_context: row.trace_context } : {}),
    ...(row.flush_trace_context ? { flush_trace_context: row.flush_trace_context } : {}),
  };
}

async function assignedRows(tx: Tx, host_id: HostId) {
  return (
    tx
      .selectFrom('vms as v')
      .innerJoin('instances as i', 'i.id', 'v.instance_id')
      .innerJoin('disks as d', 'd.instance_id', 'v.instance_id')
      .leftJoin('host_slots as s', (join) =>
        join.onRef('s.host_id', '=', 'v.host_id').onRef('s.instance_id', '=', 'v.instance_id'),
      )
      .leftJoin('flushes as f', (join) =>
        // Running ones too: an agent that restarted during a flush begins it again.
        join
          .onRef('f.instance_id', '=', 'v.instance_id')
          .onRef('f.vm_id', '=', 'v.id')
          .on('f.state', 'in', ['queued', 'running']),
      )
      .leftJoin('memory_images as m', (join) =>
        // Only until the guest runs: after that the saved memory is stale.
        join.onRef('m.vm_id', '=', 'v.id').on('v.state', '=', 'starting'),
      )
      .leftJoin('user_data as u', 'u.instance_id', 'v.instance_id')
      .leftJoinLateral(
        () => lastRan(tx),
        (join) => join.onTrue(),
      )
      .leftJoinLateral(
        () => lastRanEpochs(tx),
        (join) => join.onTrue(),
      )
      .select([
        ...(['v.id as vm_id', 'v.instance_id', 'v.boot', 'v.epoch', 'v.desired', 'v.state'] as const),
        ...(['v.force', 'v.reboots', 'v.suspended_at', 'f.id as flush_id', 'm.ref as resume'] as const),
        ...(['v.trace_context', 'f.trace_context as flush_trace_context'] as const),
        ...(['i.image', 'i.name', 'i.cpus', 'i.memory_mib', 'i.disk_gib'] as const),
        ...(['i.auto_flush_seconds', 'i.deleting', 'u.given as user_data_given', 'd.growth'] as const),
        ...(['i.egress_mode', 'i.egress_allow'] as const),
        ...([
          'ran.state as last_ran_state',
          'others.last_elsewhere',
          'others.last_here',
          'v.guest_ran',
        ] as const),
        sql<number>`s.slot`.as('slot'),
        sql<boolean>`i.host_keys is null`.as('host_key_new'),
        // Only a failed VM keeps a `stopped_at` while its stop is under way.
        sql<boolean>`v.guest_ran and v.stopped_at is not null and v.suspended_at is null`.as(
          'ran_and_failed',
        ),
      ])
      .distinctOn('v.instance_id')
      .where('v.host_id', '=', host_id)
      .where('v.released', '=', false)
      // An array, so that these are looked up, and no other boot of the host is read.
      .where('v.id', '=', sql<VmId>`any(array(${assignedIds(tx, host_id)}))`)
      .orderBy('v.instance_id')
      .orderBy('v.boot', 'desc')
      // The queued flush before the running one, which the agent already knows.
      .orderBy('f.state')
      .execute()
  );
}

/** VMs that may run, and those of deleted instances. A union, so that each half uses its index: most boots ended long ago. */
function assignedIds(tx: Tx, host_id: HostId) {
  return (
    tx
      .selectFrom('vms as here')
      .select('here.id')
      .where('here.host_id', '=', host_id)
      .where(sql<boolean>`here.state not in ('stopped', 'suspended')`)
      // Only the newest boot of an instance can be alive.
      .where(({ not, exists, selectFrom }) =>
        not(
          exists(
            selectFrom('vms as newer')
              .select('newer.id')
              .whereRef('newer.instance_id', '=', 'here.instance_id')
              .whereRef('newer.boot', '>', 'here.boot'),
          ),
        ),
      )
      .union(
        tx
          .selectFrom('vms as gone')
          .innerJoin('instances', 'instances.id', 'gone.instance_id')
          .select('gone.id')
          .where('instances.deleting', '=', sql.lit(true))
          .where('gone.host_id', '=', host_id),
      )
  );
}

/** How the last boot before `v` ended that may have run its guest. Failed starts since then wrote nothing. */
function lastRan(tx: Tx) {
  return (
    tx
      .selectFrom('vms as before')
      .select('before.state')
      .where(sql<boolean>`before.instance_id = v.instance_id and before.boot < v.boot`)
      // A stop saved what earlier boots left, or reported it lost.
      .where(sql<boolean>`(before.guest_ran or before.state = 'stopped')`)
      .orderBy('before.boot', 'desc')
      .limit(1)
      .as('ran')
  );
}

/**
 * Of the boots before `v` that may have run their guest: the newest epoch on another host and on this one. On another host also
 * that of a stop, which saved or reported lost what the boots before it had left. A boot that only failed to start takes nobody's
 * writes away.
 */
function lastRanEpochs(tx: Tx) {
  return tx
    .selectFrom('vms as other')
    .select([
      sql<number | null>`max(other.epoch) filter (where other.host_id <> v.host_id
        and (other.guest_ran or other.state = 'stopped'))`.as('last_elsewhere'),
      sql<number | null>`max(other.epoch) filter (where other.host_id = v.host_id and other.guest_ran)`.as(
        'last_here',
      ),
    ])
    .where(sql<boolean>`other.instance_id = v.instance_id and other.boot < v.boot`)
    .as('others');
}

async function keyLines(tx: Tx, ids: readonly Assignment['instance_id'][]): Promise<Map<string, string[]>> {
  const lines = new Map<string, string[]>();
  if (ids.length === 0) return lines;
  for (const key of await allowedKeys(tx, ids).execute()) {
    lines.set(key.instance_id, [...(lines.get(key.instance_id) ?? []), key.public_key]);
  }
  for (const each of lines.values()) each.sort();
  return lines;
}
