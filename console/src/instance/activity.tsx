/** What has happened to an instance, newest first, as it happens. */
import { useEffect } from 'preact/hooks';
import type { Event, Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { listen } from '../live/streams.ts';
import { More } from '../ui/more.tsx';
import { Empty, Loaded, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

export function Activity({ instance }: { readonly instance: Instance }) {
  const { id } = instance;
  const list = useList(`activity ${id}`, (cursor) =>
    call('listEvents', { query: { resource: id, limit: 50, ...(cursor === undefined ? {} : { cursor }) } }),
  );
  const { reload } = list;
  useEffect(
    () =>
      listen((told) => {
        if (told.kind === 'reset' || (told.kind === 'event' && instanceOf(told.event) === id)) void reload();
      }),
    [id, reload],
  );
  return (
    <Section title="Activity" lead="Events of the last 30 days; webhooks carry the same.">
      <Loaded query={list}>
        {(events) =>
          events.length === 0 ? (
            <Empty icon="audit" title="Nothing yet">
              <p>Starts, stops, flushes, forks and changes are listed here as they happen.</p>
            </Empty>
          ) : (
            <table class="table">
              <thead>
                <tr>
                  <th>Event</th>
                  <th>By</th>
                  <th>When</th>
                </tr>
              </thead>
              <tbody>
                {events.map((event) => (
                  <tr key={event.id}>
                    <td>
                      <code>{event.type}</code>
                    </td>
                    <td>
                      <code class="wrap">{event.data.actor}</code>
                    </td>
                    <td class="nowrap">
                      <Time at={event.timestamp} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
      <More more={list.more} />
    </Section>
  );
}

function instanceOf({ data }: Event): string | undefined {
  return (data['instance'] as Partial<Instance> | undefined)?.id;
}
