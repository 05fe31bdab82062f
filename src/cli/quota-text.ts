/** The number of a quota with its unit: `16 GiB`. */
import { bytes } from './format.ts';

const UNITS: Readonly<Record<string, number>> = { memory_mib: 2 ** 20, disk_gib: 2 ** 30 };

export function quotaText(quota: string, value: number): string {
  const unit = UNITS[quota];
  return unit === undefined ? String(value) : bytes(value * unit);
}
