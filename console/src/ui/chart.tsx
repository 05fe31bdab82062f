/**
 * A line chart over time in SVG. It shows one quantity: the mean as a line, minimum and maximum as a band. The pointer,
 * a finger or the arrow keys choose a time, which charts side by side share. The caption shows the value at that time,
 * also for screen readers. `ValueTable` shows the same values as a table.
 */

import type { RefObject } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import {
  isKnown,
  type KnownPoint,
  nearest,
  type Point,
  say,
  segments,
  type Tick,
  timeTicks,
  type Unit,
  valueTicks,
} from './chart-scale.ts';

interface ChartProps {
  readonly title: string;
  readonly points: readonly Point[];
  readonly unit: Unit;
  /** The end of the scale, if it is fixed. */
  readonly max?: number;
  readonly from_ms: number;
  readonly to_ms: number;
  /** Where points are farther apart, nothing was measured. */
  readonly gap_ms: number;
  /** The chosen time; null: none. */
  readonly chosen_ms: number | null;
  readonly onChoose: (at_ms: number | null) => void;
  /** The newest value is the present one; else it is told with its time. */
  readonly is_live: boolean;
  /** Shown while no time is chosen: a sum, or why there is no present value. Null: the newest value. */
  readonly otherwise: string | null;
  /** The time of a point, for people. */
  readonly sayTime: (point: Point) => string;
}

const HEIGHT = 132;
/** For ten letters, such as those of “0.05 GiB h”. */
const LEFT = 74;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
const TICK_WIDTH = 48;
const USUAL_WIDTH = 340;
const FAR_STEP = 10;

export function Chart(props: ChartProps) {
  const { title, points, unit, max, from_ms, to_ms, gap_ms, chosen_ms, otherwise, is_live, sayTime } = props;
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame, USUAL_WIDTH);
  const shown = points.filter(({ at_ms }) => at_ms >= from_ms && at_ms <= to_ms);
  const known = shown.filter(isKnown);
  const { top, ticks } = valueTicks(
    max ?? Math.max(0, ...known.map(({ spread }) => spread.max)),
    unit,
    max !== undefined,
  );
  const right = width - RIGHT;
  const bottom = HEIGHT - BOTTOM;
  const x = (at_ms: number) => LEFT + ((right - LEFT) * (at_ms - from_ms)) / (to_ms - from_ms);
  const y = (value: number) => bottom - ((bottom - TOP) * Math.min(value, top)) / top;
  const index = chosen_ms === null ? known.length - 1 : nearest(known, chosen_ms);
  const found = known[index];
  const far = found === undefined || Math.abs(found.at_ms - (chosen_ms ?? to_ms)) > gap_ms;
  const chosen = far ? undefined : found;
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        <Value
          known={known}
          chosen={chosen}
          {...{ unit, otherwise, is_live, sayTime }}
          is_chosen={chosen_ms !== null}
        />
      </figcaption>
      <div
        {...chooser(props, known, index)}
        ref={frame}
        class="chart-plot"
        onPointerMove={(event) => choose(event, props, right)}
        onPointerDown={(event) => choose(event, props, right)}
        onPointerLeave={({ pointerType }) => pointerType === 'mouse' && props.onChoose(null)}
      >
        <svg width={width} height={HEIGHT} aria-hidden="true">
          <Axes
            {...{ ticks, x, y, right, bottom }}
            times={timeTicks(from_ms, to_ms, (right - LEFT) / TICK_WIDTH)}
          />
          {segments(shown, gap_ms).map((run) => (
            <Run key={run[0]?.at_ms} {...{ run, x, y, bottom }} />
          ))}
          {chosen_ms !== null && chosen && (
            <g class="chart-mark">
              <line x1={x(chosen.at_ms)} x2={x(chosen.at_ms)} y1={TOP} y2={bottom} />
              <circle cx={x(chosen.at_ms)} cy={y(chosen.spread.mean)} r={3.5} />
            </g>
          )}
        </svg>
      </div>
    </figure>
  );
}

interface ValueProps extends Pick<ChartProps, 'unit' | 'otherwise' | 'is_live' | 'sayTime'> {
  readonly known: readonly KnownPoint[];
  readonly chosen: KnownPoint | undefined;
  /** By somebody; else it is the newest. */
  readonly is_chosen: boolean;
}

function Value({ known, chosen, is_chosen, unit, otherwise, is_live, sayTime }: ValueProps) {
  if (!is_chosen && otherwise !== null) return <span class="dim">{otherwise}</span>;
  if (known.length === 0) return <span class="dim">no values</span>;
  if (!chosen) return <span class="dim">{is_chosen ? 'not measured' : ''}</span>;
  return (
    <span class="chart-value">
      {(is_chosen || !is_live) && <span class="dim">{sayTime(chosen)} </span>}
      {say(chosen.spread.mean, unit)}
      {is_chosen && <Extremes point={chosen} unit={unit} />}
    </span>
  );
}

function Extremes({ point: { spread }, unit }: { readonly point: KnownPoint; readonly unit: Unit }) {
  if (spread.min === spread.max) return null;
  return <span class="dim">{` max ${say(spread.max, unit)}`}</span>;
}

interface Scale {
  readonly x: (at_ms: number) => number;
  readonly y: (value: number) => number;
  readonly bottom: number;
}

function Axes({
  ticks,
  times,
  x,
  y,
  right,
  bottom,
}: Scale & { readonly ticks: readonly Tick[]; readonly times: readonly Tick[]; readonly right: number }) {
  return (
    <g class="chart-axes">
      {ticks.map(({ at, label }) => (
        <g key={label}>
          <line x1={LEFT} x2={right} y1={y(at)} y2={y(at)} />
          <text x={LEFT - 6} y={y(at) + 4} text-anchor="end">
            {label}
          </text>
        </g>
      ))}
      {times.map(({ at, label }) => (
        <g key={at}>
          <line x1={x(at)} x2={x(at)} y1={bottom} y2={bottom + 4} />
          <text x={Math.min(Math.max(x(at), LEFT), right - 12)} y={HEIGHT - 4} text-anchor="middle">
            {label}
          </text>
        </g>
      ))}
    </g>
  );
}

function Run({ run, x, y, bottom }: Scale & { readonly run: readonly KnownPoint[] }) {
  const spot = (point: KnownPoint, value: number) => `${x(point.at_ms).toFixed(1)},${y(value).toFixed(1)}`;
  const line = run.map((point) => spot(point, point.spread.mean)).join(' L');
  const upper = run.map((point) => spot(point, point.spread.max)).join(' L');
  const lower = run
    .toReversed()
    .map((point) => spot(point, point.spread.min))
    .join(' L');
  const [first, last] = [run[0], run.at(-1)];
  if (!first || !last) return null;
  // A line from a point to itself would be one pixel.
  if (first === last)
    return <circle class="chart-dot" cx={x(first.at_ms)} cy={y(first.spread.mean)} r={2.5} />;
  return (
    <>
      <path class="chart-area" d={`M${x(first.at_ms)},${bottom} L${line} L${x(last.at_ms)},${bottom} Z`} />
      <path class="chart-band" d={`M${upper} L${lower} Z`} />
      <path class="chart-line" d={`M${line}`} />
    </>
  );
}

function choose(
  event: PointerEvent & { readonly currentTarget: Element },
  { from_ms, to_ms, onChoose }: ChartProps,
  right: number,
): void {
  const from_left = event.clientX - event.currentTarget.getBoundingClientRect().left;
  const share = Math.min(1, Math.max(0, (from_left - LEFT) / (right - LEFT)));
  onChoose(from_ms + share * (to_ms - from_ms));
}

/** Its role, name, value and keys: a slider along the points. */
function chooser(
  { title, unit, onChoose, sayTime }: ChartProps,
  known: readonly KnownPoint[],
  index: number,
) {
  const at = known[index];
  if (!at) return { role: 'img', 'aria-label': `${title}: no values` } as const;
  const steps: Record<string, number> = {
    ...{ ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 },
    ...{ PageDown: -FAR_STEP, PageUp: FAR_STEP, Home: -known.length, End: known.length },
  };
  return {
    role: 'slider',
    tabIndex: 0,
    'aria-label': title,
    'aria-valuemin': 0,
    'aria-valuemax': known.length - 1,
    'aria-valuenow': index,
    'aria-valuetext': `${sayTime(at)}: ${say(at.spread.mean, unit)}${at.spread.max > at.spread.mean ? `, at most ${say(at.spread.max, unit)}` : ''}`,
    onBlur: () => onChoose(null),
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key === 'Escape') onChoose(null);
      const step = steps[event.key];
      if (step === undefined) return;
      event.preventDefault();
      onChoose(known[Math.min(known.length - 1, Math.max(0, index + step))]?.at_ms ?? null);
    },
  } as const;
}

/** The width of an element in pixels, kept current; `otherwise` until it is known. */
export function useWidth(element: RefObject<Element | null>, otherwise: number): number {
  const [width, setWidth] = useState(otherwise);
  useLayoutEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) setWidth(Math.round(entry.contentRect.width));
    });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return width;
}

/** A finger leaves its value chosen when it lifts. A press beside the charts forgets it. */
export function useForgetting(is_chosen: boolean, choose: (at_ms: null) => void): void {
  useEffect(() => {
    if (!is_chosen) return;
    const forget = ({ target }: PointerEvent) => {
      if (!(target instanceof Element && target.closest('.chart-plot'))) choose(null);
    };
    document.addEventListener('pointerdown', forget);
    return () => document.removeEventListener('pointerdown', forget);
  }, [is_chosen, choose]);
}

interface ValueRow {
  /** The time of the row. */
  readonly at: string;
  readonly name: string;
  readonly values: readonly string[];
}

interface ValueTableProps {
  readonly hint: string;
  readonly heads: readonly string[];
  readonly rows: () => readonly ValueRow[];
  readonly empty: string;
}

/** What charts show as a table, for screen readers and for copying. It is made when it is opened. */
export function ValueTable(props: ValueTableProps) {
  const [open, setOpen] = useState(false);
  return (
    <details class="value-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Values as a table</summary>
      {open && (
        <>
          <p class="hint">{props.hint} The table scrolls sideways.</p>
          <Rows {...props} />
        </>
      )}
    </details>
  );
}

function Rows({ heads, rows, empty }: ValueTableProps) {
  const shown = rows();
  if (shown.length === 0) return <p class="dim">{empty}</p>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls must be reachable by keyboard
    <section class="scroll-box" tabIndex={0} aria-label="Values as a table">
      <table class="table">
        <thead>
          <tr>
            <th>From</th>
            {heads.map((head) => (
              <th key={head} class="number">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map(({ at, name, values }) => (
            <tr key={at}>
              <th scope="row">
                <time dateTime={at}>{name}</time>
              </th>
              {heads.map((head, nth) => (
                <td key={head} class="number">
                  {values[nth]}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
