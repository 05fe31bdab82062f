/** Defines the types of a benchmark and of its figures, computes their statistics, and formats the table on stdout. */
import type { Installation } from './installation.ts';

/** One JSON line of the output, with exactly these fields: the ratio of two medians from the same run. */
export interface Figure {
  readonly bench: string;
  readonly figure: string;
  /** Berth's median. */
  readonly value: number;
  readonly unit: string;
  /** What the value is compared with. */
  readonly beside: string;
  /** The median of that, in the same unit. */
  readonly beside_value: number;
  /** value / beside_value. */
  readonly ratio: number;
  /** How many times each side was measured. */
  readonly runs: number;
}

/** A figure with the values of both sides and a remark for the table. */
export interface Measured {
  readonly figure: Figure;
  readonly values: readonly number[];
  readonly beside_values: readonly number[];
  readonly remark: string;
}

/** The context of a benchmark that needs no installation. */
export interface HostContext {
  /** Scratch folder on the data folder's file system; removed at the end. */
  readonly scratch_dir: string;
  /** A built guest image: vmlinuz, initrd.img, rootfs.img. */
  readonly image_dir: string;
  /** Measured rounds; one more before them is discarded. */
  readonly runs: number;
  readonly signal: AbortSignal;
  readonly say: (line: string) => void;
}

export interface BenchContext extends HostContext {
  readonly installation: Installation;
}

interface Described {
  readonly name: string;
  readonly summary: string;
}

/** One that needs no installation. */
export interface HostBench extends Described {
  readonly alone: true;
  readonly run: (context: HostContext) => Promise<readonly Measured[]>;
}

export interface InstallationBench extends Described {
  readonly alone?: false;
  readonly run: (context: BenchContext) => Promise<readonly Measured[]>;
}

export type Bench = HostBench | InstallationBench;

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const upper = sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
  const lower = sorted[Math.floor((sorted.length - 1) / 2)] ?? Number.NaN;
  return (upper + lower) / 2;
}

/** The nearest-rank quantile. */
export function quantile(values: readonly number[], q: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(sorted.length * q) - 1)] ?? Number.NaN;
}

export interface Samples {
  readonly bench: string;
  readonly figure: string;
  readonly unit: string;
  readonly values: readonly number[];
  readonly beside: string;
  readonly beside_values: readonly number[];
  readonly remark: string;
}

export function measured(samples: Samples): Measured {
  const { bench, figure, unit, values, beside, beside_values, remark } = samples;
  const value = rounded(median(values));
  const beside_value = rounded(median(beside_values));
  const ratio = Math.round((value / beside_value) * 100) / 100;
  const line: Figure = { bench, figure, value, unit, beside, beside_value, ratio, runs: values.length };
  return { figure: line, values, beside_values, remark };
}

/** Three digits after the point below 100, none above: more would be noise. */
function rounded(value: number): number {
  return value < 100 ? Math.round(value * 1000) / 1000 : Math.round(value);
}

export function spread(values: readonly number[]): string {
  return `${rounded(Math.min(...values))}–${rounded(Math.max(...values))}`;
}

/** The table for people. */
export function table(all: readonly Measured[]): string {
  const rows = all.map(({ figure: f, values, beside_values }) => [
    `${f.bench}/${f.figure}`,
    `${f.value} ${f.unit}`,
    spread(values),
    `${f.beside_value} ${f.unit}`,
    spread(beside_values),
    f.ratio.toFixed(2),
    String(f.runs),
    f.beside,
  ]);
  const head = ['figure', 'median', 'min–max', 'beside', 'min–max', 'ratio', 'runs', 'beside what'];
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i]?.length ?? 0)));
  const line = (row: readonly string[]) =>
    row
      .map((text, i) => text.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd();
  const remarks = all.flatMap(({ figure: f, remark }) =>
    remark ? [`${f.bench}/${f.figure}: ${remark}`] : [],
  );
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...rows.map(line), ...remarks].join(
    '\n',
  );
}
