/** An instance's events, newest first, live. */
import type { Event, Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Actor, useActors } from '../ui/actor.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

export function Activity({ instance }: { readonly instance: Instance }) {
  const { id } = instance;
  const list = useActors(
    useList(
      `activity ${id}`,
      (query) => call('listEvents', { query: { resource: id, limit: 50, ...query } }),
      (message) => message.kind === 'event' && instanceOf(message.event) === id,
    ),
  );
  return (
    <Section title="Activity" lead="Events of the last 30 days; webhooks carry the same.">
      <ListTable
        list={list}
        empty={
          <Empty icon="audit" title="Nothing yet">
            <p>Starts, stops, flushes, forks and changes are listed here as they happen.</p>
          </Empty>
        }
        columns={[
          {
            head: 'Event',
            cell: ({ type, data }) => (
              <>
                <code>{type}</code>
                <div class="narrow-only dim">
                  <Actor id={data.actor} />
                </div>
              </>
            ),
          },
          { head: 'By', class: 'wide-only', cell: ({ data }) => <Actor id={data.actor} /> },
          { head: 'When', class: 'nowrap', cell: ({ timestamp }) => <Time at={timestamp} /> },
        ]}
      />
    </Section>
  );
}

function instanceOf({ data }: Event): string | undefined {
  return (data['instance'] as Partial<Instance> | undefined)?.id;
}
