/** What an instance's VMs used over a range of time, also while none runs now. */

import type { InstanceId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { downsample, type MetricSample } from './downsample.ts';
import { readSamples } from './metric-store.ts';

const MINUTE_S = 60;
const HOUR_S = 60 * MINUTE_S;
const DAY_S = 24 * HOUR_S;

export const RANGES = ['1h', '6h', '24h', '7d', '30d'] as const;
export type Range = (typeof RANGES)[number];

/** Each range has at most 360 samples. A step is a multiple of the stored periods: minutes for a day, then hours. */
const SPANS: Readonly<Record<Range, { readonly seconds: number; readonly step_seconds: number }>> = {
  '1h': { seconds: HOUR_S, step_seconds: MINUTE_S },
  '6h': { seconds: 6 * HOUR_S, step_seconds: MINUTE_S },
  '24h': { seconds: DAY_S, step_seconds: 5 * MINUTE_S },
  '7d': { seconds: 7 * DAY_S, step_seconds: HOUR_S },
  '30d': { seconds: 30 * DAY_S, step_seconds: 3 * HOUR_S },
};
export const MAX_SAMPLES = 361;

export interface MetricHistory {
  readonly from: Date;
  readonly to: Date;
  readonly step_seconds: number;
  readonly samples: readonly MetricSample[];
}

export async function readMetricHistory(db: Db, id: InstanceId, range: Range): Promise<MetricHistory> {
  const { seconds, step_seconds } = SPANS[range];
  const to_ms = Date.now();
  const step_ms = step_seconds * 1000;
  const from_ms = Math.ceil((to_ms - seconds * 1000) / step_ms) * step_ms;
  const from = new Date(from_ms);
  const samples = downsample(await readSamples(db, id, from), step_ms);
  return { from, to: new Date(to_ms), step_seconds, samples };
}
