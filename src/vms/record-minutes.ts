/** Records what a host reports of past minutes. A host is believed about instances whose newest VM it has or had. */
import type { MinutesReport, Spread, Spreads } from '../agent-api/metric-types.ts';
import type { Db } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';
import { insertSamples, listCpusOn } from './metric-store.ts';

const MINUTE_MS = 60_000;
/** A host keeps minutes for about an hour while the control plane is away. */
const OLDEST_MS = 2 * 60 * MINUTE_MS;
/** Clocks differ. */
const AHEAD_MS = 5 * MINUTE_MS;

export async function recordMinutes(
  db: Db,
  host_id: HostId,
  { minutes }: MinutesReport,
): Promise<'accepted' | 'fenced'> {
  const now_ms = Date.now();
  const cpus = await listCpusOn(db, host_id, [...new Set(minutes.map(({ instance_id }) => instance_id))]);
  const samples = minutes.flatMap(({ instance_id, at, spreads }) => {
    const at_ms = Date.parse(at);
    const count = cpus.get(instance_id);
    if (count === undefined || at_ms < now_ms - OLDEST_MS || at_ms > now_ms + AHEAD_MS) return [];
    return [{ instance_id, at_ms: at_ms - (at_ms % MINUTE_MS), minutes: 1, spreads: ofAll(spreads, count) }];
  });
  await insertSamples(db, 60, samples);
  return minutes.length > 0 && cpus.size === 0 ? 'fenced' : 'accepted';
}

/** QEMU also emulates devices, so the process may exceed its virtual CPUs: the share is capped at 1. */
function ofAll({ cpu, ...others }: Spreads, count: number): Spreads {
  const share = (cpus: number) => Math.min(1, cpus / count);
  const shares: Spread | null = cpu && { mean: share(cpu.mean), min: share(cpu.min), max: share(cpu.max) };
  return { ...others, cpu: shares };
}
