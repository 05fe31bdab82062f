/** Sums of what instances used. */
import type { Usage } from './generated.ts';

/** One entry for each instance, from its first period on; the longest running first. */
export function usageByInstance(entries: readonly Usage[]): Usage[] {
  const sums = new Map<string, Usage>();
  for (const each of entries) {
    const sum = sums.get(each.instance_id);
    sums.set(each.instance_id, sum === undefined ? each : addUsage(sum, each));
  }
  return [...sums.values()].sort((a, b) => b.running_seconds - a.running_seconds);
}

/** With the instance of the first, and the earlier start. */
export function addUsage(sum: Usage, each: Usage): Usage {
  return {
    instance_id: sum.instance_id,
    start: sum.start < each.start ? sum.start : each.start,
    running_seconds: sum.running_seconds + each.running_seconds,
    cpu_seconds: sum.cpu_seconds + each.cpu_seconds,
    memory_gib_hours: sum.memory_gib_hours + each.memory_gib_hours,
    stored_gib_hours: sum.stored_gib_hours + each.stored_gib_hours,
    flushed_bytes: sum.flushed_bytes + each.flushed_bytes,
    http_bytes: sum.http_bytes + each.http_bytes,
  };
}
