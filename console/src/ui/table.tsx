/** Tables, and lists from the API with their placeholder, error, empty text and next page. */
import type { ComponentChildren, ComponentProps } from 'preact';
import { useState } from 'preact/hooks';
import { attempt, useAction } from '../use-action.ts';
import type { List } from '../use-query.ts';
import { Button } from './button.tsx';
import { Checkbox } from './field.tsx';
import { ConfirmDialog } from './form.tsx';
import { Loaded } from './page.tsx';

const OPTION = 'option';
/** A longer list shows this many rows at first, and as many more on request. */
const ROWS_AT_ONCE = 50;

export interface Column<T> {
  readonly head: string;
  readonly cell: (row: T) => ComponentChildren;
  /** `wide-only`, `nowrap`, `number`, `wrap`, `roomy`. */
  readonly class?: string;
  /** On a narrow screen it stands with its heading below the first column. */
  readonly below?: boolean;
}

interface RowAction<T> {
  readonly name: string | ((row: T) => string);
  /** The action and its row, for screen readers and as the title of the confirmation. */
  readonly about: (row: T) => string;
  /** The consequence; if given, a dialog asks first. */
  readonly warning?: string | ((row: T) => string);
  /** A checkbox below the question. */
  readonly option?: { readonly label: string; readonly hint: string };
  readonly kind?: 'plain' | 'quiet';
  /** The id of the text in the row that says why it cannot be used; undefined: it can. */
  readonly reasonId?: (row: T) => string | undefined;
  readonly work: (row: T, is_chosen: boolean) => unknown;
}

interface TableProps<T> {
  readonly rows: readonly T[];
  readonly columns: readonly Column<T>[];
  readonly actions?: readonly RowAction<T>[];
  /** Shown instead of buttons from `actions`. */
  readonly end?: (row: T) => ComponentChildren;
  /** Called after an action, also after a failed one. */
  readonly onDone?: () => Promise<void>;
  readonly class?: string;
}

/** A table: a column is a function of its row; a row's actions are at its end. */
export function Table<T extends { readonly id: string }>(props: TableProps<T>) {
  const { rows, columns, actions = [], end, class: more = '' } = props;
  const [asked, setAsked] = useState<{ readonly action: RowAction<T>; readonly row: T } | null>(null);
  const begin = async (action: RowAction<T>, row: T) => {
    if (action.warning !== undefined) return setAsked({ action, row });
    await attempt(() => action.work(row, false));
    await props.onDone?.();
  };
  const [shown, setShown] = useState(ROWS_AT_ONCE);
  const has_end = end !== undefined || actions.length > 0;
  return (
    <>
      <table class={`table ${more}`}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.head} class={classOf(column)}>
                {column.head}
              </th>
            ))}
            {has_end && (
              <th class="end">
                <span class="hidden">Actions</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row) => (
            <tr key={row.id}>
              {columns.map((column, nth) => (
                <td key={column.head} class={classOf(column)}>
                  {column.cell(row)}
                  {nth === 0 && <Below row={row} columns={columns} />}
                </td>
              ))}
              {has_end && (
                <td class="end">{end?.(row) ?? <Buttons row={row} actions={actions} onChosen={begin} />}</td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown && (
        <p class="more">
          <Button onClick={() => setShown(shown + ROWS_AT_ONCE)}>
            Show {Math.min(ROWS_AT_ONCE, rows.length - shown)} more of {rows.length}
          </Button>
        </p>
      )}
      {asked && (
        <ConfirmDialog
          title={asked.action.about(asked.row)}
          verb={nameOf(asked.action, asked.row)}
          onClose={() => setAsked(null)}
          work={async (form) => {
            try {
              await asked.action.work(asked.row, form.has(OPTION));
            } finally {
              await props.onDone?.();
            }
          }}
        >
          <p>{warningOf(asked.action, asked.row)}</p>
          {asked.action.option && <Checkbox {...asked.action.option} name={OPTION} />}
        </ConfirmDialog>
      )}
    </>
  );
}

function classOf<T>({ class: own = '', below = false }: Column<T>): string | undefined {
  return `${own}${below ? ' wide-only' : ''}`.trim() || undefined;
}

function Below<T>({ row, columns }: { readonly row: T; readonly columns: readonly Column<T>[] }) {
  const shown = columns.filter(({ below }) => below === true);
  if (shown.length === 0) return null;
  return (
    <dl class="row-facts narrow-only">
      {shown.map(({ head, cell }) => (
        <div key={head}>
          <dt>{head}</dt>
          <dd>{cell(row)}</dd>
        </div>
      ))}
    </dl>
  );
}

interface ButtonsProps<T> {
  readonly row: T;
  readonly actions: readonly RowAction<T>[];
  readonly onChosen: (action: RowAction<T>, row: T) => Promise<void> | void;
}

function Buttons<T>({ row, actions, onChosen }: ButtonsProps<T>) {
  return (
    <div class="actions">
      {actions.map((action) => (
        <Button
          key={nameOf(action, row)}
          small
          kind={action.kind ?? 'quiet'}
          reason_id={action.reasonId?.(row)}
          aria-label={action.about(row)}
          onClick={() => void onChosen(action, row)}
        >
          {nameOf(action, row)}
        </Button>
      ))}
    </div>
  );
}

function warningOf<T>({ warning }: RowAction<T>, row: T): string | undefined {
  return typeof warning === 'function' ? warning(row) : warning;
}

function nameOf<T>({ name }: RowAction<T>, row: T): string {
  return typeof name === 'string' ? name : name(row);
}

interface LoadedListProps<T> {
  readonly list: Pick<List<T>, 'data' | 'error' | 'reload'> & Partial<Pick<List<T>, 'more'>>;
  /** Shown instead of an empty list. */
  readonly empty: ComponentChildren;
  /** The expected number of rows, for the placeholder's height. */
  readonly lines?: number;
}

/** A list from the API: shows a placeholder while it loads, its error, a text if it is empty, and a button for the next page. */
export function LoadedList<T>({
  list,
  empty,
  lines = 3,
  children,
}: LoadedListProps<T> & { readonly children: (rows: readonly T[]) => ComponentChildren }) {
  return (
    <>
      <Loaded query={list} lines={lines}>
        {(rows) => (rows.length === 0 ? empty : children(rows))}
      </Loaded>
      {list.more && <More more={list.more} />}
    </>
  );
}

type ListTableProps<T extends { readonly id: string }> = Omit<
  ComponentProps<typeof Table<T>>,
  'rows' | 'onDone' | 'children' | 'key' | 'ref'
>;

/** The same as a table. It reloads after an action on a row. */
export function ListTable<T extends { readonly id: string }>({
  list,
  empty,
  lines = 3,
  ...table
}: LoadedListProps<T> & ListTableProps<T>) {
  return (
    <LoadedList list={list} empty={empty} lines={lines}>
      {(rows) => <Table<T> {...table} rows={rows} onDone={list.reload} />}
    </LoadedList>
  );
}

function More({ more }: { readonly more: () => Promise<void> }) {
  const action = useAction(more);
  return (
    <p class="more">
      <Button busy={action.busy} onClick={() => void action.run()}>
        Show more
      </Button>
    </p>
  );
}
