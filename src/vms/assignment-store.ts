import { sql } from 'kysely';
import type { Assignment } from '../agent-api/types.ts';
import type { Tx } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';
import { allowedKeys } from '../ssh-keys/store.ts';

/** Reasons of boots that never reached `running` and may have written all the same. */
const ENDED_AFTER_ITS_FIRST_INSTRUCTION = [
  'boot_timeout',
  'vm_died',
  'guest_panicked',
  'starting_timeout',
  'host_lost',
] as const;

/** Everything that a host is to look after, in the order of instances. */
export async function listAssignments(tx: Tx, host_id: HostId): Promise<Assignment[]> {
  const rows = await tx
    .selectFrom('vms as v')
    .innerJoin('instances as i', 'i.id', 'v.instance_id')
    .leftJoin('flushes as f', (join) =>
      // A running one too: an agent that restarted in the middle of it begins it again.
      join.onRef('f.vm_id', '=', 'v.id').on('f.state', 'in', ['queued', 'running']),
    )
    .leftJoin('memory_images as m', (join) =>
      // Once it has run the guest's memory is its own.
      join.onRef('m.vm_id', '=', 'v.id').on('v.state', '=', 'starting'),
    )
    .leftJoin('user_data as u', 'u.instance_id', 'v.instance_id')
    .select([
      'v.id as vm_id',
      'v.instance_id',
      'v.boot',
      'v.epoch',
      'v.desired',
      'v.state',
      'v.force',
      'v.reboots',
      'f.id as flush_id',
      'm.ref as resume',
      'v.suspended_at',
      // Only of a failed VM is there a time, until its stop is done.
      sql<boolean>`v.started_at is not null and v.stopped_at is not null and v.suspended_at is null`.as(
        'ran_and_failed',
      ),
      'i.image',
      'i.name',
      'i.cpus',
      'i.memory_mib',
      'i.disk_gib',
      'i.ssh_port',
      'i.auto_flush_seconds',
      'i.deleting',
      sql<boolean>`i.host_keys is null`.as('host_key_new'),
      'u.given as user_data_given',
      // How the last boot that ran its guest ended; failed starts in between wrote nothing.
      (eb) =>
        eb
          .selectFrom('vms as before')
          .select('before.state')
          .whereRef('before.instance_id', '=', 'v.instance_id')
          .whereRef('before.boot', '<', 'v.boot')
          .where((inner) =>
            inner.or([
              inner('before.started_at', 'is not', null),
              // Saved, or said to be lost, whatever boots before it had left.
              inner('before.state', '=', 'stopped'),
              inner('before.reason_code', 'in', [...ENDED_AFTER_ITS_FIRST_INSTRUCTION]),
            ]),
          )
          .orderBy('before.boot', 'desc')
          .limit(1)
          .as('last_ran_state'),
      (eb) =>
        eb
          .selectFrom('vms as elsewhere')
          .select((inner) => inner.fn.max('elsewhere.epoch').as('epoch'))
          .whereRef('elsewhere.instance_id', '=', 'v.instance_id')
          .whereRef('elsewhere.host_id', '!=', 'v.host_id')
          .whereRef('elsewhere.boot', '<', 'v.boot')
          .as('last_elsewhere'),
    ])
    .distinctOn('v.instance_id')
    .where('v.host_id', '=', host_id)
    .where('v.released', '=', false)
    // Two ways, each by its index: most boots of a host were over long ago.
    .where('v.id', 'in', (eb) =>
      eb
        .selectFrom('vms as here')
        .select('here.id')
        .where('here.host_id', '=', host_id)
        .where('here.state', 'not in', ['stopped', 'suspended'])
        // Only the newest boot: an older one is over, wherever it was.
        .where((inner) =>
          inner.not(
            inner.exists(
              inner
                .selectFrom('vms as newer')
                .select('newer.id')
                .whereRef('newer.instance_id', '=', 'here.instance_id')
                .whereRef('newer.boot', '>', 'here.boot'),
            ),
          ),
        )
        .union(
          eb
            .selectFrom('vms as gone')
            .innerJoin('instances', 'instances.id', 'gone.instance_id')
            .select('gone.id')
            .where('instances.deleting', '=', true)
            .where('gone.host_id', '=', host_id),
        ),
    )
    .orderBy('v.instance_id')
    .orderBy('v.boot', 'desc')
    // The queued one before the running one: an agent knows what it has begun.
    .orderBy('f.state')
    .execute();
  const keys = await keyLines(
    tx,
    rows.map((row) => row.instance_id),
  );
  return rows.map((row) => ({
    instance_id: row.instance_id,
    vm_id: row.vm_id,
    boot: row.boot,
    epoch: row.epoch,
    desired: row.deleting ? 'deleted' : row.state === 'failed' ? 'failed' : row.desired,
    force: row.force,
    reboots: row.reboots,
    previous_failed: row.ran_and_failed || row.last_ran_state === 'failed',
    own_since: (row.last_elsewhere ?? 0) + 1,
    suspended: row.suspended_at !== null,
    resume: row.resume,
    user_data: row.user_data_given !== null,
    flush_id: row.flush_id,
    host_key_new: row.host_key_new,
    spec: {
      image: row.image,
      hostname: row.name,
      cpus: row.cpus,
      memory_mib: row.memory_mib,
      disk_bytes: row.disk_gib * 2 ** 30,
      ssh_port: row.ssh_port,
      auto_flush_seconds: row.auto_flush_seconds,
    },
    // A host that had an instance once is told to remove it, and not who may enter it.
    authorized_keys: row.deleting ? [] : (keys.get(row.instance_id) ?? []),
  }));
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
