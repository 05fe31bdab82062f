/** Who did what, when and from where. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { exactly } from '../format.ts';
import { leads } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { More } from '../ui/more.tsx';
import { Empty, Loaded, PageHead } from '../ui/page.tsx';
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
  const list = useList(`audit ${JSON.stringify(filter)}`, (cursor) =>
    call('listAudit', { query: { ...filter, ...(cursor === undefined ? {} : { cursor }) } }),
  );
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const said = (name: string) => String(form.get(name)).trim();
    setFilter({
      ...(said('action') === '' ? {} : { action: said('action') }),
      ...(said('actor') === '' ? {} : { actor: said('actor') }),
    });
  };
  return (
    <>
      <form class="filter" onSubmit={submit}>
        <Field label="Action" name="action" placeholder="vm.start" spellcheck={false} />
        <Field label="By" name="actor" placeholder="usr_…" spellcheck={false} />
        <Button submit>Filter</Button>
      </form>
      <Loaded query={list} lines={8}>
        {(entries) =>
          entries.length === 0 ? (
            <Empty icon="audit" title="No entry">
              <p>Nothing fits. Take a part of the filter away.</p>
            </Empty>
          ) : (
            <table class="table">
              <thead>
                <tr>
                  <th>When</th>
                  <th>Action</th>
                  <th class="wide-only">By</th>
                  <th class="wide-only">On</th>
                  <th class="wide-only">From</th>
                  <th class="number wide-only">No.</th>
                </tr>
              </thead>
              <tbody>
                {entries.map(({ id, at, action, actor, target, ip, seq }) => (
                  <tr key={id}>
                    <td class="nowrap">{exactly(at)}</td>
                    <td>
                      <code>{action}</code>
                    </td>
                    <td class="wide-only">
                      <code class="wrap">{actor}</code>
                    </td>
                    <td class="wide-only">
                      <code class="wrap">{target ?? ''}</code>
                    </td>
                    <td class="wide-only nowrap">{ip ?? ''}</td>
                    <td class="number wide-only">{seq ?? ''}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
      <More more={list.more} />
    </>
  );
}
