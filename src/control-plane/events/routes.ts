/** Serves the organisation's events, as a list and as a live stream. A caller sees the events that its scopes allow. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { invalid } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import type { Tx } from '../db/pool.ts';
import { principalOf } from '../http/access.ts';
import { RESOURCE_ID_PATTERN } from '../http/errors.ts';
import type { App } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  eventStream,
  idOf,
  LastEventId,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  Time,
} from '../http/schemas.ts';
import { findActorNames } from '../identity/account-store.ts';
import type { Scope } from '../identity/permissions.ts';
import type { Principal } from '../identity/principal.ts';
import type { EventStreams, StreamSource } from './event-stream.ts';
import { LOG_FILTERS, type LogQuery, logFilter } from './log-filters.ts';
import { EVENT_TYPES, type EventType, type EventView, eventView } from './model.ts';
import {
  type EventFilter,
  isResource,
  listEvents,
  listEventsSince,
  mayConcern,
  type NumberedEvent,
} from './store.ts';

const EventTypeSchema = oneOf(EVENT_TYPES, { title: 'EventType', examples: ['vm.started'] });
const Event = named('Event', {
  id: idOf('evt'),
  type: EventTypeSchema,
  timestamp: Time,
  actor_name: nullable(
    Type.String({
      description:
        'The e-mail address of the member or the name of the service account; null without the scope `org:read`, for former members, hosts and `system`. Webhooks do not send it',
      examples: ['ada@example.org'],
    }),
  ),
  data: Type.Object(
    {
      org_id: idOf('org'),
      actor: Type.String({ examples: ['usr_01k5x8m2vq7r4t9wz3b6c8d0ef'] }),
      sequence: nullable(
        Type.Integer({ description: "The number of the event among its instance's events", examples: [12] }),
      ),
    },
    { additionalProperties: true, description: 'The resource as the API shows it, with these fields' },
  ),
});

const FILTERS = {
  type: Type.Optional(oneOf(EVENT_TYPES, { description: 'Only of this type' })),
  resource: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 64,
      pattern: RESOURCE_ID_PATTERN,
      description:
        'Only of this instance, HTTP port, API key, SSH key, member (`usr_…`) or webhook; of an instance also `instance.forked` of its forks',
    }),
  ),
};
type Filters = { readonly type?: EventType; readonly resource?: string };
type Query = Filters & LogQuery;

/** Readable with `instances:read`; all others with `org:read`. */
const OF_INSTANCES = ['instance', 'vm', 'egress', 'disk', 'port', 'ssh_key', 'api_key'];
const SCOPES = ['instances:read', 'org:read'] as const satisfies readonly Scope[];
const ACCESS = { access: 'any', any_scope: SCOPES } as const;

function scopeOf(type: EventType): Scope {
  return OF_INSTANCES.includes(type.split('.')[0] ?? '') ? 'instances:read' : 'org:read';
}

/** @throws AppError INVALID_REQUEST */
function filterOf(principal: Principal, { type, resource }: Filters): EventFilter {
  if (resource !== undefined && !isResource(resource)) {
    throw invalid(
      'resource',
      'must be the id of an instance, HTTP port, API key, SSH key, member or webhook',
    );
  }
  const wanted = type === undefined ? EVENT_TYPES : [type];
  const types = wanted.filter(
    (each) => principal.scopes.has(scopeOf(each)) && (resource === undefined || mayConcern(each, resource)),
  );
  return { org_id: principal.org_id, types, resource };
}

/** With the names of their actors, for callers who may read the organisation's members. */
async function shown(
  tx: Tx,
  principal: Principal,
  rows: readonly NumberedEvent[],
): Promise<readonly { readonly row: NumberedEvent; readonly view: EventView }[]> {
  const may_know = principal.scopes.has('org:read');
  const names = await findActorNames(tx, principal.org_id, may_know ? rows.map(({ actor }) => actor) : []);
  return rows.map((row) => ({ row, view: eventView(row, names.get(row.actor) ?? null) }));
}

export function registerEvents(
  app: App,
  context: AppContext,
  cursors: CursorSealer,
  streams: EventStreams,
): void {
  registerList(app, context, cursors);
  registerStream(app, context, streams);
}

function registerList(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/events',
    config: ACCESS,
    schema: {
      operationId: 'listEvents',
      summary: "List the organisation's events of the last 30 days",
      description:
        'The scope `instances:read` shows the events of instances, VMs, egress, disks, HTTP ports and keys; `org:read` shows the others.',
      tags: ['Events'],
      querystring: pageQuery(200, { ...FILTERS, ...LOG_FILTERS }),
      response: { 200: pageOf(Event) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      const query: Query = request.query;
      const wanted = filterOf(principal, query);
      return pageOfList(cursors, principal, request, {
        route: 'events',
        list: async (before, count) => {
          const more = await logFilter(db, principal.org_id, query);
          if (more === null) return [];
          const position = before === null ? null : Number(before);
          const rows = await listEvents(db, { ...wanted, ...more }, position, count);
          const views = await shown(db, principal, rows);
          return views.map(({ row, view }) => ({ id: String(row.position), view }));
        },
        show: ({ view }) => view as never,
      });
    },
  });
}

function registerStream(app: App, { db }: AppContext, streams: EventStreams): void {
  const sourceOf = (filter: Filters): StreamSource => ({
    topic: 'events',
    wokenBy: ({ org_id }) => org_id,
    read: async (principal, position, limit) => {
      const rows = await listEventsSince(db, filterOf(principal, filter), position, limit);
      return (await shown(db, principal, rows)).map(({ row, view }) => ({
        position: row.position,
        frame: { id: row.id, event: row.type, data: view },
      }));
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/events/stream',
    config: { ...ACCESS, errors: ['QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'streamEvents',
      summary: "Stream the organisation's events as they happen",
      description:
        'Each event is sent under its type, with an Event. The stream also sends `reset` when `Last-Event-ID` is no longer known, and `end` with an error before it ends because the credential has ended.',
      tags: ['Events'],
      headers: LastEventId,
      querystring: closed(FILTERS),
      response: { 200: eventStream() },
    },
    handler: (request: FastifyRequest, reply) => {
      const filter = request.query as Filters;
      filterOf(principalOf(request), filter);
      return streams.answer(request, reply, sourceOf(filter)) as never;
    },
  });
}
