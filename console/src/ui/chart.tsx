/** A small line chart over time, in SVG, with one series. Shows the value under the pointer, else the last one. */
import { useState } from 'preact/hooks';

export interface Point {
  readonly at_ms: number;
  /** null: unknown; the line has a gap there. */
  readonly value: number | null;
}

interface Props {
  readonly title: string;
  readonly points: readonly Point[];
  readonly format: (value: number) => string;
  /** The upper end of the scale, if it is fixed. */
  readonly max?: number;
  /** The time that the chart covers. */
  readonly span_ms: number;
}

const WIDTH = 320;
const HEIGHT = 72;
const clock = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });

export function Chart({ title, points, format, max, span_ms }: Props) {
  const [pointed, setPointed] = useState<number | null>(null);
  const end_ms = points.at(-1)?.at_ms ?? Date.now();
  const known = points.filter((point): point is Point & { value: number } => point.value !== null);
  const top = Math.max(max ?? 0, ...known.map(({ value }) => value), 1e-9) * (max === undefined ? 1.15 : 1);
  const x = (at_ms: number) => WIDTH * (1 - (end_ms - at_ms) / span_ms);
  const y = (value: number) => HEIGHT - 1 - (HEIGHT - 4) * Math.min(1, value / top);
  const shown = pointed === null ? known.at(-1) : nearest(known, end_ms - span_ms * (1 - pointed));
  const label = shown === undefined ? 'no figures yet' : format(shown.value);
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        <span class="chart-value">
          {pointed !== null && shown !== undefined && <span class="dim">{clock.format(shown.at_ms)} </span>}
          {label}
        </span>
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}: ${label}, up to ${format(top)}`}
        onPointerMove={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          setPointed(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
        }}
        onPointerLeave={() => setPointed(null)}
      >
        {segments(points).map((segment) => {
          const line = segment
            .map(({ at_ms, value }) => `${x(at_ms).toFixed(1)},${y(value).toFixed(1)}`)
            .join(' L');
          const [first, last] = [segment[0], segment.at(-1)];
          if (!first || !last) return null;
          return (
            <g key={first.at_ms}>
              <path
                class="chart-area"
                d={`M${x(first.at_ms).toFixed(1)},${HEIGHT} L${line} L${x(last.at_ms).toFixed(1)},${HEIGHT} Z`}
              />
              <path class="chart-line" d={`M${line}${segment.length === 1 ? 'h0' : ''}`} />
            </g>
          );
        })}
        {pointed !== null && shown !== undefined && (
          <line class="chart-mark" x1={x(shown.at_ms)} x2={x(shown.at_ms)} y1={0} y2={HEIGHT} />
        )}
      </svg>
    </figure>
  );
}

type Known = Point & { value: number };

/** Runs of points with known values. */
function segments(points: readonly Point[]): Known[][] {
  const found: Known[][] = [[]];
  for (const point of points) {
    if (point.value === null) found.push([]);
    else found.at(-1)?.push(point as Known);
  }
  return found.filter(({ length }) => length > 0);
}

function nearest(points: readonly Known[], at_ms: number): Known | undefined {
  return points.reduce<Known | undefined>(
    (best, each) =>
      best === undefined || Math.abs(each.at_ms - at_ms) < Math.abs(best.at_ms - at_ms) ? each : best,
    undefined,
  );
}
