/** What charts show as a table, for screen readers and for copying. It is made when it is opened. */
import { useState } from 'preact/hooks';

export interface ValueRow {
  /** The time of the row. */
  readonly at: string;
  readonly name: string;
  readonly values: readonly string[];
}

interface Props {
  readonly hint: string;
  readonly heads: readonly string[];
  readonly rows: () => readonly ValueRow[];
  readonly empty: string;
}

export function ValueTable(props: Props) {
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

function Rows({ heads, rows, empty }: Props) {
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
