/** All organisations with their use and quotas. */
import type { OperatorOrganisation, QuotaUse } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { mebibytes } from '../format.ts';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

const plain = (value: number) => String(value);
const gibibytes = (value: number) => `${value} GiB`;

export function Organisations() {
  const list = useList('operator organisations', (query) =>
    call('listOperatorOrganisations', { query: { limit: 50, ...query } }),
  );
  return (
    <Section
      title="Organisations"
      lead={
        <>
          How much of its quotas each organisation uses. On the server, <code>berth org quota</code> changes
          them.
        </>
      }
    >
      <ListTable
        list={list}
        empty={null}
        columns={[
          { head: 'Organisation', cell: (row) => <OrganisationName row={row} /> },
          { head: 'Instances', class: 'nowrap', cell: ({ quota }) => used(quota.instances, plain) },
          { head: 'CPUs', class: 'nowrap', below: true, cell: ({ quota }) => used(quota.cpus, plain) },
          {
            head: 'Memory',
            class: 'nowrap',
            below: true,
            cell: ({ quota }) => used(quota.memory_mib, mebibytes),
          },
          {
            head: 'Disk',
            class: 'nowrap',
            below: true,
            cell: ({ quota }) => used(quota.disk_gib, gibibytes),
          },
          { head: 'Members', class: 'number', below: true, cell: ({ members }) => members },
          {
            head: 'Created',
            class: 'nowrap',
            below: true,
            cell: ({ created_at }) => <Time at={created_at} />,
          },
        ]}
      />
    </Section>
  );
}

function OrganisationName({ row }: { readonly row: OperatorOrganisation }) {
  return (
    <>
      <strong class="wrap">{row.name}</strong> {row.operator && <span class="tag">operator</span>}
      <div>
        <code class="dim wrap">{row.id}</code>
      </div>
    </>
  );
}

function used({ used: amount, limit }: QuotaUse, format: (value: number) => string) {
  const full = limit !== null && amount >= limit;
  return (
    <>
      <span class={full ? 'bad' : undefined}>{format(amount)}</span>
      <span class="dim">{limit === null ? ', no limit' : ` of ${format(limit)}`}</span>
    </>
  );
}
