/** Converts rows of instances, VMs, disks and generations to the form in which the API shows them. */
import { rfc3339 } from '../../shared/clock.ts';
import type { GenerationRow } from '../disks/generation-store.ts';
import type { InstanceRow } from './store.ts';

function time(value: Date | null): string | null {
  return value === null ? null : rfc3339(value);
}

export function diskView(row: InstanceRow) {
  return {
    size_bytes: row.size_bytes,
    generation: row.generation,
    durable_at: time(row.durable_at),
    dirty_bytes: row.dirty_bytes,
    stored_bytes: row.stored_bytes,
    ...(row.growth === null ? {} : { growth: row.growth }),
  };
}

export function vmView(row: InstanceRow) {
  const reason =
    row.reason_code === null
      ? null
      : { code: row.reason_code, message: row.reason_message ?? '', actor: row.reason_actor ?? 'system' };
  return {
    id: row.vm_id,
    instance_id: row.id,
    state: row.state ?? ('stopped' as const),
    boot: row.boot ?? 0,
    host_id: row.host_id,
    started_at: time(row.started_at),
    stopped_at: time(row.stopped_at),
    reason,
    disk: diskView(row),
  };
}

export function instanceView(row: InstanceRow) {
  return {
    id: row.id,
    name: row.name,
    org_id: row.org_id,
    created_by: row.created_by,
    image: row.image,
    cpus: row.cpus,
    memory_mib: row.memory_mib,
    disk_gib: row.disk_gib,
    labels: row.labels,
    idle_timeout_seconds: row.idle_timeout_seconds,
    wake_on_connect: row.wake_on_connect,
    restart: row.restart,
    auto_flush_seconds: row.auto_flush_seconds,
    generations_keep: { last: row.keep_last, daily_days: row.keep_daily_days },
    egress: { mode: row.egress_mode, allow: row.egress_allow },
    placement: { host_labels: row.host_labels, tolerations: row.tolerations },
    ssh: { host: row.ssh_host, port: row.ssh_port },
    host_keys: row.host_keys ?? [],
    forked_from: row.forked_from,
    deleting: row.deleting,
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
    vm: vmView(row),
    disk: diskView(row),
  };
}

export function generationView(row: GenerationRow) {
  return {
    generation: row.generation,
    created_at: rfc3339(row.created_at),
    bytes: row.bytes,
    consistency: row.consistency,
    name: row.name,
    pinned: row.pinned,
    trigger: row.trigger,
    origin: row.origin,
    dirty_bytes: row.dirty_bytes,
    segments: row.segment_count,
    duration_ms: row.duration_ms,
  };
}
