/** The audit log. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { exactly } from '../format.ts';
import { instances } from '../live/instances.ts';
import { leads } from '../live/membership.ts';
import { actorOf } from '../live/people.ts';
import { Actor, useActors } from '../ui/actor.tsx';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { useList } from '../use-list.ts';

interface Filter {
  readonly action?: string;
  readonly actor?: string;
}

export function AuditPage() {
  return (
    <>
      <PageHead
        title="Audit log"
        lead={
          <>
            Each entry holds the hash of the one before it. <code>berth audit verify</code> on the server
            proves that none was changed.
          </>
        }
      />
      {leads() ? (
        <Entries />
      ) : (
        <Empty icon="audit" title="For owners and admins">
          <p>Your role may not read the audit log.</p>
        </Empty>
      )}
    </>
  );
}

function Entries() {
  const [filter, setFilter] = useState<Filter>({});
  const list = useActors(
    useList(`audit ${JSON.stringify(filter)}`, (query) =>
      call('listAudit', { query: { ...filter, ...query } }),
    ),
  );
  const choose = async (form: FormData) => {
    const said = (name: string) => String(form.get(name)).trim();
    const actor = actorOf(said('actor'));
    if (actor.includes('@'))
      throw new Error('Nobody here has this address. Who has left is found by their id (usr_…).');
    setFilter({
      ...(said('action') === '' ? {} : { action: said('action') }),
      ...(actor === '' ? {} : { actor }),
    });
  };
  return (
    <>
      <Form class="filter" verb="Filter" work={choose}>
        {() => (
          <>
            <Field label="Action" name="action" placeholder="vm.start" spellcheck={false} />
            <Field label="By" name="actor" placeholder="address or usr_…" spellcheck={false} />
          </>
        )}
      </Form>
      <ListTable
        list={list}
        lines={8}
        empty={
          <Empty icon="audit" title="No entry">
            <p>Nothing fits. Take a part of the filter away.</p>
          </Empty>
        }
        columns={[
          { head: 'When', class: 'nowrap', cell: ({ at }) => exactly(at) },
          {
            head: 'Action',
            cell: ({ action, actor }) => (
              <>
                <code>{action}</code>
                <div class="narrow-only dim">
                  <Actor id={actor} />
                </div>
              </>
            ),
          },
          { head: 'By', class: 'wide-only', cell: ({ actor }) => <Actor id={actor} /> },
          { head: 'On', class: 'wide-only', cell: ({ target }) => <Target id={target} /> },
          { head: 'From', class: 'wide-only nowrap', cell: ({ ip }) => ip ?? '' },
          { head: 'No.', class: 'number wide-only', cell: ({ seq }) => seq ?? '' },
        ]}
      />
    </>
  );
}

/** Shows instances by name while they exist. */
function Target({ id }: { readonly id: string | null }) {
  const name = instances.value?.find((each) => each.id === id)?.name;
  if (name === undefined || id === null) return <code class="wrap">{id ?? ''}</code>;
  return (
    <a href={`/instances/${name}`} title={id}>
      {name}
    </a>
  );
}
