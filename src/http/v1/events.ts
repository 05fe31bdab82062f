/** The organisation's events: as a list, and live. What a caller sees of them, its scopes say. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import type { Scope } from '../../auth/permissions.ts';
import type { Principal } from '../../auth/principal.ts';
import { EVENT_TYPES, type EventType } from '../../events/model.ts';
import {
  type EventFilter,
  isResource,
  listEvents,
  listEventsSince,
  mayConcern,
} from '../../events/read-store.ts';
import { eventView } from '../../events/view.ts';
import { invalid } from '../../lib/errors.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import type { EventStreams, StreamSource } from '../event-stream.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import {
  COMMON,
  closed,
  errors,
  eventStream,
  LastEventId,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  Time,
} from '../schemas.ts';
import { RESOURCE_ID_PATTERN } from '../validation-words.ts';

const EventTypeSchema = oneOf(EVENT_TYPES, { title: 'EventType' });
const Event = named('Event', {
  id: Type.String(),
  type: EventTypeSchema,
  timestamp: Time,
  data: Type.Object(
    {
      org_id: Type.String(),
      actor: Type.String(),
      sequence: nullable(Type.Integer({ description: "Counts an instance's events" })),
    },
    { additionalProperties: true, description: 'The resource as the API shows it, and these' },
  ),
});

const FILTERS = {
  type: Type.Optional(oneOf(EVENT_TYPES, { description: 'Only of this type' })),
  resource: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 64,
      pattern: RESOURCE_ID_PATTERN,
      description: 'Only of this instance, API key, SSH key, member (`usr_…`) or webhook',
    }),
  ),
};
type Filters = { readonly type?: EventType; readonly resource?: string };

/** Of instances, VMs, disks and keys; all others are the organisation's. */
const OF_INSTANCES = ['instance', 'vm', 'disk', 'ssh_key', 'api_key'];
const SCOPES = ['instances:read', 'org:read'] as const satisfies readonly Scope[];
const ACCESS = { access: 'any', any_scope: SCOPES } as const;

function scopeOf(type: EventType): Scope {
  return OF_INSTANCES.includes(type.split('.')[0] ?? '') ? 'instances:read' : 'org:read';
}

/** @throws AppError INVALID_REQUEST */
function filterOf(principal: Principal, { type, resource }: Filters): EventFilter {
  if (resource !== undefined && !isResource(resource)) {
    throw invalid('resource', 'must be the id of an instance, API key, SSH key, member or webhook');
  }
  const wanted = type === undefined ? EVENT_TYPES : [type];
  const types = wanted.filter(
    (each) => principal.scopes.has(scopeOf(each)) && (resource === undefined || mayConcern(each, resource)),
  );
  return { org_id: principal.org_id, types, resource };
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
      summary: "The organisation's events of the last 30 days",
      description:
        'Those of instances, VMs, disks and keys with the scope `instances:read`, the others with `org:read`.',
      tags: ['Events'],
      querystring: pageQuery(200, FILTERS),
      response: { 200: pageOf(Event), ...errors(...COMMON) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      const wanted = filterOf(principal, request.query);
      return pageOfList(cursors, principal, request, {
        route: 'events',
        list: async (before, count) => {
          const rows = await listEvents(db, wanted, before === null ? null : Number(before), count);
          return rows.map((row) => ({ id: String(row.position), row }));
        },
        show: ({ row }) => eventView(row) as never,
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
      return rows.map((row) => ({
        position: row.position,
        frame: { id: row.id, event: row.type, data: eventView(row) },
      }));
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/events/stream',
    config: ACCESS,
    schema: {
      operationId: 'streamEvents',
      summary: "The organisation's events as they happen",
      description:
        'Each event under its type, with an Event. Also: `reset` when `Last-Event-ID` is not known any more, `end` with an error before the stream ends for want of a credential.',
      tags: ['Events'],
      headers: LastEventId,
      querystring: closed(FILTERS),
      response: { 200: eventStream(), ...errors(...COMMON, 'QUOTA_EXCEEDED') },
    },
    handler: (request: FastifyRequest, reply) => {
      const filter = request.query as Filters;
      filterOf(principalOf(request), filter);
      return streams.answer(request, reply, sourceOf(filter)) as never;
    },
  });
}
