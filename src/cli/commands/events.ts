/**
 * The commands `berth events` and `berth audit`: list what happened to resources, and what each actor did. Both share
 * the filters by time, type and actor. For an empty list they check whether the filter names a type and an actor that
 * exist.
 */
import { AUDIT_ACTIONS, auditDetails, auditIds } from '../../../client/src/audit-words.ts';
import { type AuditEntry, type Berth, BerthError, type Event } from '../../../client/src/berth.ts';
import { actorWords, eventSentence } from '../../../client/src/event-words.ts';
import type { Call, Command } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { collect } from '../reading.ts';
import { cell, localTime, numberCell, timeCell } from '../table.ts';
import { didYouMean, EVENT_TYPES, limitOption, timeOption } from '../values.ts';

const LIMIT_OPTION = {
  limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
} as const;

const mostOf = ({ options }: Call) => limitOption(options.text('limit'));

export const FILTERS = {
  since: { type: 'string', value: 'TIME', help: 'only since then: a duration such as 24h, or a time' },
  until: { type: 'string', value: 'TIME', help: 'only before then: a duration such as 1h, or a time' },
  actor: {
    type: 'string',
    value: 'ACTOR',
    help: "only of this actor: an e-mail address, a service account's name or an id",
  },
} as const;

export const filterOf = ({ options }: Call) => ({
  since: timeOption('since', options.text('since')),
  until: timeOption('until', options.text('until')),
  actor: options.text('actor'),
});

/** How many of the newest entries are searched for actors. */
const SEARCHED = 1_000;
const LISTED = 10;
const ALWAYS = ['system', 'operator'];

interface Acting {
  readonly actor: string;
  readonly actor_name: string | null;
}

/** @throws UsageError for an action that there is not. Call it for an empty answer. */
function requireAction(action: string | undefined): void {
  if (action === undefined || AUDIT_ACTIONS.includes(action)) return;
  throw new UsageError(`--type: there is no action ${action}${didYouMean(action, AUDIT_ACTIONS)}`);
}

/** @throws CommandError when no actor of that name or id has acted. Call it for an empty answer. */
async function requireActor(
  { session }: Pick<Call, 'session'>,
  actor: string | undefined,
  newest: () => Promise<readonly Acting[]>,
): Promise<void> {
  if (actor === undefined || ALWAYS.includes(actor) || actor === session.profile?.email) return;
  const found = await newest();
  const known = new Set(
    found.flatMap((each) => [each.actor_name, each.actor].filter((name) => name !== null)),
  );
  const wanted = actor.toLowerCase();
  if ([...known].some((each) => each.toLowerCase() === wanted)) return;
  const names = [...new Set(found.flatMap(({ actor_name }) => actor_name ?? []))];
  const hint = didYouMean(actor, [...names, ...ALWAYS]);
  const listed = names.slice(0, LISTED).join(', ');
  throw new CommandError(`--actor: there is no entry by ${actor}${hint}`, {
    next: listed === '' ? null : `--actor with one of ${listed}${names.length > LISTED ? ', …' : ''}`,
    exit_code: EXIT.not_found,
  });
}

const MOST_NAMES = 1_000;

interface Named {
  readonly id: string;
  readonly name: string;
}

/** Some of the names may not be this caller's to read. */
async function namesOf(items: AsyncIterable<Named>): Promise<readonly (readonly [string, string])[]> {
  const found = await collect(items, MOST_NAMES).catch((error: unknown) => {
    if (error instanceof BerthError && [403, 404].includes(error.status)) return [];
    throw error;
  });
  return found.map(({ id, name }) => [id, name] as const);
}

/** The names of what the details of the entries mention by id: from the entries themselves, else asked for. */
async function mentioned({ session }: Call, berth: Berth, entries: readonly AuditEntry[]) {
  const names = new Map<string, string>();
  for (const { target, target_name } of entries.toReversed())
    if (target !== null && target_name !== null) names.set(target, target_name);
  const unknown = entries.flatMap(auditIds).filter((id) => !names.has(id));
  const lacks = (prefix: string) => unknown.some((id) => id.startsWith(prefix));
  const org_id = session.env['BERTH_API_KEY'] ? undefined : session.profile?.org_id;
  const lists = [
    ...(lacks('inst_') ? [namesOf(berth.instances.list({ limit: 200 }))] : []),
    ...(lacks('sa_') ? [namesOf(berth.list('listServiceAccounts', { query: { limit: 200 } }))] : []),
    ...(lacks('key_') && org_id !== undefined
      ? [namesOf(berth.list('listOrgSshKeys', { path: { id: org_id }, query: { limit: 200 } }))]
      : []),
  ];
  for (const [id, name] of (await Promise.all(lists)).flat()) names.set(id, name);
  return (id: string) => names.get(id);
}

/** `web (inst_…)`, or the id alone. */
const named = (id: string, name: string | null) => (name === null ? id : `${name} (${id})`);

async function audit(call: Call): Promise<undefined> {
  const { session, options, terminal } = call;
  const most = mostOf(call);
  const action = options.text('type');
  const query = { action, ...filterOf(call), limit: Math.max(1, Math.min(200, most)) };
  const berth = session.berth();
  const found = await collect(berth.list('listAudit', { query }), most);
  if (found.length === 0) {
    requireAction(action);
    await requireActor(call, query.actor, () =>
      collect(berth.list('listAudit', { query: { limit: 200 } }), SEARCHED),
    );
  }
  const nameOf = terminal.format === 'human' ? await mentioned(call, berth, found) : undefined;
  terminal.list(found, {
    headings: ['SEQ', 'WHEN', 'ACTOR', 'ACTION', 'TARGET', 'DETAILS', 'FROM'],
    row: (each) => [
      // Null until the entry is sealed, shortly after the request.
      numberCell(each.seq),
      timeCell(each.at),
      cell(actorWords(each.actor, each.actor_name), each.actor),
      each.action,
      cell(each.target === null ? '-' : named(each.target, each.target_name), each.target),
      cell(auditDetails(each, nameOf) || '-', JSON.stringify(each.data)),
      cell(each.ip ?? 'the server', each.ip),
    ],
    more: {
      headings: ['ACTOR NAME', 'TARGET NAME', 'REQUEST', 'ID'],
      row: ({ actor_name, target_name, request_id, id }) => [
        actor_name ?? '-',
        target_name ?? '-',
        request_id ?? '-',
        id,
      ],
    },
    quiet: ({ id }) => id,
    empty: 'No entries.',
  });
}

const AUDIT: Command = {
  name: 'audit ls',
  short: ['audit'],
  details: `The actions: ${AUDIT_ACTIONS.join(', ')}.`,
  summary: 'show the audit log: who did what, when and from where',
  example: 'berth audit --since 7d --actor ada@example.org',
  options: {
    type: {
      type: 'string',
      value: 'ACTION',
      field: 'action',
      help: 'only of this action: vm.start, api_key.create, …',
    },
    ...FILTERS,
    ...LIMIT_OPTION,
  },
  run: audit,
};

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

export const EVENT_COMMANDS: readonly Command[] = [
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
      ...LIMIT_OPTION,
    },
    run: events,
  },
  AUDIT,
];
