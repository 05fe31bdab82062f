/** Records what a host reports of past minutes, and counts the processor time. A host is believed about instances whose newest VM it has or had. */
import type { MinutesReport, Spread, Spreads } from '../../protocol/metric-types.ts';
import type { HostId } from '../../shared/ids.ts';
import { type Db, transaction } from '../db/pool.ts';
import { addUse } from '../usage/count-store.ts';
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
    const whole_ms = at_ms - (at_ms % MINUTE_MS);
    return [
      { instance_id, at_ms: whole_ms, minutes: 1, spreads: ofAll(spreads, count), cpus: spreads.cpu?.mean },
    ];
  });
  await transaction(db, async (tx) => {
    const stored = await insertSamples(tx, 60, samples);
    const places = new Set(stored.map(({ instance_id, at }) => placeOf(instance_id, at.getTime())));
    const fresh = samples.filter(({ instance_id, at_ms }) => places.has(placeOf(instance_id, at_ms)));
    const uses = fresh.map(({ instance_id, at_ms, cpus: mean = 0 }) => {
      return { instance_id, at: new Date(at_ms), cpu_seconds: mean * 60 };
    });
    await addUse(tx, uses);
  });
  return minutes.length > 0 && cpus.size === 0 ? 'fenced' : 'accepted';
}

const placeOf = (instance_id: string, at_ms: number) => `${instance_id} ${at_ms}`;

/** QEMU also emulates devices, so the process may exceed its virtual CPUs: the share is capped at 1. */
function ofAll({ cpu, ...others }: Spreads, count: number): Spreads {
  const share = (cpus: number) => Math.min(1, cpus / count);
  const shares: Spread | null = cpu && { mean: share(cpu.mean), min: share(cpu.min), max: share(cpu.max) };
  return { ...others, cpu: shares };
}
