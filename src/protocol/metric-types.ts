/** What VMs used in past minutes, for the history that the control plane keeps. */
import { Type } from 'typebox';
import { closed, InstanceId, listOf, named, nullable, type Of, Time } from './schemas.ts';

/** The measured quantities, in the order of the stored arrays. */
export const METRICS = [
  /** CPUs in use: 1.5 is one and a half. Stored as the share of all of the instance's CPUs. */
  'cpu',
  /** Bytes of memory, as the guest sees them without caches, and on the host. */
  'memory_used',
  'memory_host',
  /** Bytes per second. */
  'disk_read',
  'disk_written',
  'network_received',
  'network_sent',
  /** Bytes that the guest has written and that are not durable yet. */
  'dirty',
] as const;
export type Metric = (typeof METRICS)[number];

/** The most samples in one report. */
const MINUTES_MAX = 1_000;

const Amount = Type.Number({ minimum: 0, maximum: 2 ** 53 });
export const Spread = named('Spread', { mean: Amount, min: Amount, max: Amount });
export type Spread = Of<typeof Spread>;

/** Null: not measured in this minute. */
export type Spreads = Readonly<Record<Metric, Spread | null>>;
const spread = nullable(Spread);
const SpreadOfEach = closed({
  cpu: spread,
  memory_used: spread,
  memory_host: spread,
  disk_read: spread,
  disk_written: spread,
  network_received: spread,
  network_sent: spread,
  dirty: spread,
} satisfies Record<Metric, typeof spread>);

export const UsedMinute = named('UsedMinute', {
  instance_id: InstanceId,
  /** The beginning of the minute. */
  at: Time,
  spreads: SpreadOfEach,
});
export type UsedMinute = Of<typeof UsedMinute>;

export const MinutesReport = named('MinutesReport', { minutes: listOf(UsedMinute, MINUTES_MAX) });
export type MinutesReport = Of<typeof MinutesReport>;
