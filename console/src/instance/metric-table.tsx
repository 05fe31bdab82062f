/** The history of an instance as a table: what the charts show, for screen readers and for copying. */
import { useState } from 'preact/hooks';
import type { MetricHistory } from '../../../client/src/berth.ts';
import { exactly } from '../format.ts';
import { say } from '../ui/chart-scale.ts';
import { QUANTITIES } from './metric-points.ts';

export function MetricTable({ history }: { readonly history: MetricHistory }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="metric-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Values as a table</summary>
      {open && (
        <>
          <p class="hint">
            The mean of each period, and its maximum in brackets. The table scrolls sideways.
          </p>
          <Rows history={history} />
        </>
      )}
    </details>
  );
}

function Rows({ history: { samples } }: { readonly history: MetricHistory }) {
  if (samples.length === 0) return <p class="dim">Nothing was measured in this range.</p>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls must be reachable by keyboard
    <section class="scroll-box" tabIndex={0} aria-label="Values as a table">
      <table class="table">
        <thead>
          <tr>
            <th>From</th>
            {QUANTITIES.map(({ title }) => (
              <th key={title} class="number">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {samples.toReversed().map((sample) => (
            <tr key={sample.at}>
              <th scope="row">
                <time dateTime={sample.at}>{exactly(sample.at)}</time>
              </th>
              {QUANTITIES.map(({ title, unit, past }) => {
                const spread = past(sample);
                const extremes = spread && spread.max > spread.mean ? ` (${say(spread.max, unit)})` : '';
                return (
                  <td key={title} class="number">
                    {spread ? `${say(spread.mean, unit)}${extremes}` : '–'}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
