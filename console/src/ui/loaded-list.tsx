/** A list from the API: shows a placeholder while it loads, its error, a text if it is empty, and a button for the next page. */
import type { ComponentChildren, ComponentProps } from 'preact';
import { useAction } from '../use-action.ts';
import type { List } from '../use-list.ts';
import { Button } from './button.tsx';
import { Loaded } from './page.tsx';
import { Table } from './table.tsx';

interface Props<T> {
  readonly list: Pick<List<T>, 'data' | 'error' | 'reload'> & Partial<Pick<List<T>, 'more'>>;
  /** Shown instead of an empty list. */
  readonly empty: ComponentChildren;
  /** The expected number of rows, for the placeholder's height. */
  readonly lines?: number;
}

export function LoadedList<T>({
  list,
  empty,
  lines = 3,
  children,
}: Props<T> & { readonly children: (rows: readonly T[]) => ComponentChildren }) {
  return (
    <>
      <Loaded query={list} lines={lines}>
        {(rows) => (rows.length === 0 ? empty : children(rows))}
      </Loaded>
      {list.more && <More more={list.more} />}
    </>
  );
}

type TableProps<T extends { readonly id: string }> = Omit<
  ComponentProps<typeof Table<T>>,
  'rows' | 'onDone' | 'children' | 'key' | 'ref'
>;

/** The same as a table. It reloads after an action on a row. */
export function ListTable<T extends { readonly id: string }>({
  list,
  empty,
  lines = 3,
  ...table
}: Props<T> & TableProps<T>) {
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
