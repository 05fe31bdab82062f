/** The page of all instances of the organisation, kept current: filters, table, and actions on selected instances. */
import { useEffect, useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { CreateDialog, is_creating } from '../instance/create-dialog.tsx';
import { instances, instances_error, MAX_INSTANCES, refreshSoon } from '../live/instances.ts';
import { whyNoWork, works } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { LoadedList } from '../ui/table.tsx';
import { type BulkAction, BulkBar, BulkDialog } from './bulk.tsx';
import { ColumnChoice, Filters, NEWEST_FIRST, NO_FILTER, OrderChoice, selectInstances } from './filters.tsx';
import { InstanceTable, readColumns, writeColumns } from './instance-table.tsx';

const WHAT_IT_IS =
  'An instance is a Linux machine that you can stop without losing a file: its disk, name and SSH address stay until you delete it.';
/** Rows shown at first, and by each “Show more”. */
const PAGE = 50;

/** An action on several instances, as they were when it was chosen. */
interface Asked {
  readonly action: BulkAction;
  readonly chosen: readonly Instance[];
}

export function InstancesPage() {
  const creating = is_creating.value;
  // Not a part of the list: a deletion can empty it, and the dialog still shows the outcomes.
  const [asked, setAsked] = useState<Asked | null>(null);
  const setCreating = (next: boolean) => {
    is_creating.value = next;
  };
  useEffect(() => () => setCreating(false), []);
  const create = (
    <Button kind="primary" reason={whyNoWork()} onClick={() => setCreating(true)}>
      <Icon name="plus" />
      New instance
    </Button>
  );
  const query = { data: instances.value, error: instances_error.value, reload: async () => refreshSoon() };
  return (
    <>
      <PageHead title="Instances" lead={WHAT_IT_IS} actions={create} />
      <LoadedList
        list={query}
        empty={
          <Empty icon="instances" title="No instances yet">
            <p>
              Create the first one with the button above, or with <code>berth up NAME</code>.
            </p>
          </Empty>
        }
      >
        {(list) => <List list={list} onAsked={setAsked} />}
      </LoadedList>
      {asked && <BulkDialog {...asked} onClose={() => setAsked(null)} />}
      {creating && <CreateDialog onClose={() => setCreating(false)} />}
    </>
  );
}

interface ListProps {
  readonly list: readonly Instance[];
  readonly onAsked: (asked: Asked) => void;
}

function List({ list, onAsked }: ListProps) {
  const [filter, setFilter] = useState(NO_FILTER);
  const [order, setOrder] = useState(NEWEST_FIRST);
  const [shown, setShown] = useState(readColumns);
  const [most, setMost] = useState(PAGE);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const found = selectInstances(list, filter, order);
  const rows = found.slice(0, most);
  const selected = list.filter(({ id }) => chosen.has(id));
  return (
    <>
      <div class="filter instance-filter">
        <Filters list={list} filter={filter} onFilter={setFilter} />
        <OrderChoice order={order} onOrder={setOrder} />
        <ColumnChoice
          shown={shown}
          onShown={(keys) => {
            writeColumns(keys);
            setShown(keys);
          }}
        />
      </div>
      {works() && (
        <BulkBar
          chosen={selected}
          onAction={(action) => onAsked({ action, chosen: selected })}
          onClear={() => setChosen(new Set())}
        />
      )}
      <InstanceTable
        rows={rows}
        selects={works()}
        shown={shown}
        order={order}
        onOrder={setOrder}
        chosen={chosen}
        onChosen={setChosen}
      />
      {found.length === 0 && <p class="none-found">No instance matches.</p>}
      {found.length > rows.length && (
        <p class="more">
          <Button onClick={() => setMost(most + PAGE)}>
            Show more: {rows.length} of {found.length} shown
          </Button>
        </p>
      )}
      {list.length >= MAX_INSTANCES && (
        <p class="hint">
          These are the newest {MAX_INSTANCES} instances. <code>berth ls</code> lists all of them.
        </p>
      )}
    </>
  );
}
