/** `berth events`. */
import { type Berth, BerthError, type Event } from '../../../client/src/berth.ts';
import { eventSentence } from '../../../client/src/event-words.ts';
import type { Call, Command } from '../command.ts';
import { EVENT_TYPES } from '../complete-values.ts';
import { collect } from '../reading.ts';
import { localTime, timeCell } from '../table.ts';
import { AUDIT } from './audit-command.ts';
import { FILTERS, filterOf, LIMIT, mostOf, requireActor, SEARCHED } from './log-filters.ts';

/** One event as it comes: a line for people, a line of JSON, or its id. */
function printEvent({ terminal }: Call, event: Event): void {
  if (terminal.format === 'json') terminal.jsonLine(event);
  else if (terminal.format === 'quiet') terminal.write(`${event.id}\n`);
  else terminal.write(`${localTime(event.timestamp)}  ${event.type.padEnd(26)} ${eventSentence(event)}\n`);
}

const actsAs = (actor: string | undefined, { data, actor_name }: Event) =>
  actor === undefined || data.actor === actor || actor_name?.toLowerCase() === actor.toLowerCase();

/** New events; with --since, first those since then. Both oldest first. */
async function follow(call: Call, type: Event['type'] | undefined, resource: string | undefined) {
  const { session, terminal, signal } = call;
  const berth = session.berth();
  const filter = filterOf(call);
  let last_event_id: string | undefined;
  if (filter.since !== undefined) {
    const query = { type, resource, ...filter, limit: 200 };
    const past = await collect(berth.list('listEvents', { query }), mostOf(call));
    for (const event of past.toReversed()) printEvent(call, event);
    last_event_id = past[0]?.id;
  }
  const onReset = () =>
    terminal.warn('berth: some events may be missing; berth events lists those that are kept');
  for await (const event of berth.events({ type, resource }, { signal, onReset, last_event_id })) {
    if (actsAs(filter.actor, event)) printEvent(call, event);
  }
}

const MOST_INSTANCES = 1_000;

/** The present names of instances, if some of the events are forks: these have only the id of what they were forked from. */
async function parentNames(berth: Berth, found: readonly Event[]) {
  if (!found.some(({ type }) => type === 'instance.forked')) return () => undefined;
  const instances = await collect(berth.instances.list({ limit: 200 }), MOST_INSTANCES).catch((error) => {
    if (error instanceof BerthError && error.status === 403) return [];
    throw error;
  });
  const names = new Map<string, string>(instances.map(({ id, name }) => [id, name]));
  return (id: string) => names.get(id);
}

async function events(call: Call): Promise<undefined> {
  const { session, options, terminal } = call;
  const berth = session.berth();
  const name = options.text('instance');
  const resource = name === undefined ? undefined : (await berth.instances.find(name)).id;
  const type = options.text('type') as Event['type'] | undefined;
  if (options.flag('follow')) return void (await follow(call, type, resource));
  const most = mostOf(call);
  const query = { type, resource, ...filterOf(call), limit: Math.max(1, Math.min(200, most)) };
  const found = await collect(berth.list('listEvents', { query }), most);
  if (found.length === 0) {
    await requireActor(call, query.actor, async () => {
      const newest = await collect(berth.list('listEvents', { query: { limit: 200 } }), SEARCHED);
      return newest.map(({ data, actor_name }) => ({ actor: data.actor, actor_name }));
    });
  }
  const nameOf = await parentNames(berth, found);
  terminal.list(found, {
    headings: ['WHEN', 'TYPE', { for_people: 'EVENT' }],
    row: (event) => [timeCell(event.timestamp), event.type, eventSentence(event, nameOf)],
    more: {
      headings: ['ID', 'ACTOR', 'ACTOR NAME', 'INSTANCE', 'INSTANCE NAME'],
      row: ({ id, data, actor_name }) => {
        const { instance } = data as { readonly instance?: { readonly id: string; readonly name: string } };
        return [id, data.actor, actor_name ?? '-', instance?.id ?? '-', instance?.name ?? '-'];
      },
    },
    quiet: ({ id }) => id,
    empty: 'No events.',
  });
}

export const WATCH_COMMANDS: readonly Command[] = [
  {
    name: 'events',
    lists: true,
    details: `The types: ${EVENT_TYPES.join(', ')}.`,
    summary: 'list the events of the last 30 days, the newest first; -f prints new ones as they come',
    example: 'berth events --instance web --since 24h',
    options: {
      follow: {
        type: 'boolean',
        short: 'f',
        help: 'print new ones as they come, until Ctrl-C; with --since, first those since then',
      },
      instance: { type: 'string', value: 'NAME', field: 'resource', help: 'only of this instance' },
      type: {
        type: 'string',
        value: 'TYPE',
        choices: EVENT_TYPES,
        help: 'only of this type: vm.started, disk.flushed, …',
      },
      ...FILTERS,
      ...LIMIT,
    },
    run: events,
  },
  AUDIT,
];
