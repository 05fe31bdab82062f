/** A series as one line of text: the higher the bar, the larger the value; a space where there is none. */

const BARS = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'] as const;

export interface TimedValue {
  readonly at_ms: number;
  readonly value: number;
}

/** `cells` characters for the time from `from_ms` to `to_ms`, scaled from 0 to the largest value. */
export function sparkLine(
  values: readonly TimedValue[],
  { from_ms, to_ms, cells }: { readonly from_ms: number; readonly to_ms: number; readonly cells: number },
): string {
  const cell_ms = (to_ms - from_ms) / cells;
  const of_cells = Array.from({ length: cells }, (): number[] => []);
  for (const { at_ms, value } of values) of_cells[Math.floor((at_ms - from_ms) / cell_ms)]?.push(value);
  const means = of_cells.map((some) =>
    some.length === 0 ? null : some.reduce((sum, value) => sum + value, 0) / some.length,
  );
  const top = Math.max(0, ...means.filter((mean) => mean !== null));
  return means
    .map((mean) => {
      if (mean === null) return ' ';
      return BARS[top === 0 ? 0 : Math.min(BARS.length - 1, Math.floor((mean / top) * BARS.length))];
    })
    .join('');
}
