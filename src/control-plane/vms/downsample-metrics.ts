import { type Db, transaction } from '../db/pool.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { downsample } from './downsample.ts';
import { deleteSamples, insertSamples, listSampled, takeMinutes } from './metric-store.ts';

const HOUR_MS = 3_600_000;
/** A day, and an hour so that a day can be read by the minute at any time. */
const MINUTES_FOR_MS = 25 * HOUR_MS;
const HOURS_FOR_MS = 30 * 24 * HOUR_MS;

/** Replaces the minutes of metric histories by hours after a day, and deletes the hours after 30 days. */
export async function downsampleMetrics(db: Db, now_ms = Date.now()): Promise<void> {
  // Whole hours, so that no hour is replaced twice.
  const minutes_until = new Date(Math.floor((now_ms - MINUTES_FOR_MS) / HOUR_MS) * HOUR_MS);
  const hours_until = new Date(now_ms - HOURS_FOR_MS);
  await eachInTurn(await listSampled(db), (instance_id) =>
    transaction(db, async (tx) => {
      const minutes = await takeMinutes(tx, instance_id, minutes_until);
      const hours = downsample(minutes, HOUR_MS).map((hour) => ({ instance_id, ...hour }));
      await insertSamples(tx, 3600, hours);
      await deleteSamples(tx, instance_id, hours_until);
    }),
  );
}
