/** The Activity tab of an instance: its events as sentences, newest first, with a filter. New events appear at once. */
import { useState } from 'preact/hooks';
import type { Event, EventType, Instance } from '../../../client/src/berth.ts';
import { eventSentence } from '../../../client/src/event-words.ts';
import { call } from '../api.ts';
import { instances } from '../live/instances.ts';
import { Select } from '../ui/field.tsx';
import { LogFilter, type LogFilterValues } from '../ui/log-filter.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-query.ts';
import { EVENT_GROUPS } from '../webhooks/webhook-dialog.tsx';

/** The groups whose events are an instance's. */
const GROUPS = EVENT_GROUPS.filter(({ name }) =>
  ['Instances', 'VMs', 'Egress', 'Disks', 'HTTP ports'].includes(name),
);

const nameOf = (id: string) => instances.value?.find((each) => each.id === id)?.name;

export function Activity({ instance }: { readonly instance: Instance }) {
  const { id } = instance;
  const [filter, setFilter] = useState<LogFilterValues>({});
  const { type, ...others } = filter;
  const wanted = { ...others, ...(type === undefined ? {} : { type: type as EventType }) };
  const list = useList(
    `activity ${id} ${JSON.stringify(filter)}`,
    (query) => call('listEvents', { query: { resource: id, limit: 50, ...wanted, ...query } }),
    (message) => message.kind === 'event' && concerns(message.event, id),
  );
  const filtered = Object.keys(filter).length > 0;
  return (
    <Section
      title="Activity"
      lead="What people, Berth and the host did with this instance in the last 30 days. Webhooks send the same events."
    >
      <LogFilter type={<TypeField />} value={filter} onChange={setFilter} />
      <ListTable
        list={list}
        lines={8}
        empty={
          <Empty icon="audit" title={filtered ? 'No event fits' : 'No events yet'}>
            <p>
              {filtered
                ? 'Change or clear the filter.'
                : 'Starts, stops, flushes, forks and changes are listed here as they happen. Start the VM to see the first.'}
            </p>
          </Empty>
        }
        columns={[
          {
            head: 'Event',
            cell: (event) => (
              <>
                <div class="wrap">{eventSentence(event, nameOf)}</div>
                <code class="dim">{event.type}</code>
              </>
            ),
          },
          { head: 'When', class: 'nowrap', cell: ({ timestamp }) => <Time at={timestamp} /> },
        ]}
      />
    </Section>
  );
}

function TypeField() {
  return (
    <Select label="Type" name="type">
      <option value="">All types</option>
      {GROUPS.flatMap(({ types }) =>
        types.map((type) => (
          <option key={type} value={type}>
            {type}
          </option>
        )),
      )}
    </Select>
  );
}

/** A fork concerns its parent too. */
function concerns({ data }: Event, id: string): boolean {
  const forked_from = data['forked_from'] as Instance['forked_from'] | undefined;
  return (data['instance'] as Partial<Instance> | undefined)?.id === id || forked_from?.instance_id === id;
}
