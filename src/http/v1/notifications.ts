/**
 * What the caller is told: a person's own notifications, or those about a service account itself. A person's API key sees
 * those that concern the account or the key's organisation.
 */
import { type TSchema, Type } from 'typebox';
import { actorOf, type Principal, userOf } from '../../auth/principal.ts';
import { lockUser } from '../../auth/store.ts';
import { AppError } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { markAllRead, markRead, readUpTo } from '../../notifications/mark-read.ts';
import { KIND_NAMES, type Kind, SEVERITIES } from '../../notifications/model.ts';
import { readPreferences, setPreferences } from '../../notifications/preferences.ts';
import { countUnread, listNotifications, listRaisedSince, type Reader } from '../../notifications/store.ts';
import { notificationView } from '../../notifications/view.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { requireMatch, setEtag } from '../etag.ts';
import type { EventStreams, StreamSource } from '../event-stream.ts';
import { mutate } from '../mutate.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import {
  COMMON,
  closed,
  errors,
  eventStream,
  IdParams,
  LastEventId,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  Time,
} from '../schemas.ts';

const MAX_LIMIT = 100;

const Notification = named('Notification', {
  id: Type.String(),
  kind: oneOf(KIND_NAMES, { title: 'NotificationKind' }),
  severity: oneOf(SEVERITIES, { title: 'NotificationSeverity' }),
  title: Type.String({ maxLength: 200 }),
  body: Type.String({ maxLength: 1_000 }),
  resource: nullable(named('NotificationResource', { type: Type.String(), id: Type.String() })),
  data: Type.Record(Type.String(), Type.Unknown(), { description: 'For programs: what it is about' }),
  count: Type.Integer({ minimum: 1, description: 'Repeats within an hour on one resource, while unread' }),
  created_at: Time,
  read_at: nullable(Time),
});
const Count = closed({ count: Type.Integer() });

function ofKinds<T extends TSchema>(schema: T) {
  return closed(Object.fromEntries(KIND_NAMES.map((kind) => [kind, schema])) as Record<Kind, T>);
}
const Preferences = named('NotificationPreferences', {
  mail: ofKinds(Type.Boolean()),
  always: Type.Array(oneOf(KIND_NAMES), {
    description: 'Those that cannot be muted',
    maxItems: KIND_NAMES.length,
  }),
});
const SetPreferences = closed({ mail: ofKinds(Type.Optional(Type.Boolean())) });

function readerOf(principal: Principal): Reader {
  const within = principal.credential.kind === 'api_key' ? principal.org_id : null;
  return { recipient: actorOf(principal), within };
}

export function registerNotifications(
  app: App,
  context: AppContext,
  cursors: CursorSealer,
  streams: EventStreams,
): void {
  registerList(app, context, cursors);
  registerReading(app, context);
  registerPreferences(app, context);
  registerStream(app, context, streams);
}

function registerList(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/notifications',
    config: { access: 'notifications:read' },
    schema: {
      operationId: 'listNotifications',
      summary:
        "The caller's notifications; to an API key those about its creator's account or its organisation",
      tags: ['Notifications'],
      querystring: pageQuery(MAX_LIMIT, {
        status: Type.Optional(oneOf(['unread', 'read'], { description: 'Only these' })),
      }),
      response: { 200: pageOf(Notification), ...errors(...COMMON) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'notifications',
        max_limit: MAX_LIMIT,
        list: (before, count) =>
          listNotifications(db, readerOf(principal), request.query.status, before, count),
        show: notificationView,
      });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/notifications/unread-count',
    config: { access: 'notifications:read' },
    schema: {
      operationId: 'countUnreadNotifications',
      summary: 'How many are unread',
      tags: ['Notifications'],
      response: { 200: Count, ...errors(...COMMON) },
    },
    handler: async (request) => ({ count: await countUnread(db, readerOf(principalOf(request))) }),
  });
}

function registerReading(app: App, { db }: AppContext): void {
  app.route({
    method: 'PATCH',
    url: '/v1/notifications/:id',
    config: { access: 'notifications:write' },
    schema: {
      operationId: 'markNotification',
      summary: 'Mark one as read, or as unread',
      tags: ['Notifications'],
      params: IdParams,
      body: closed({ read: Type.Boolean() }),
      response: { 200: Notification, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request) => {
      const { id } = request.params;
      if (!isId('ntf', id)) throw new AppError('NOT_FOUND');
      return notificationView(await markRead(db, readerOf(principalOf(request)), id, request.body.read));
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/notifications/read-all',
    config: { access: 'notifications:write' },
    schema: {
      operationId: 'markAllNotifications',
      summary: 'Mark all as read that are there now, or up to one; what is raised meanwhile stays unread',
      tags: ['Notifications'],
      body: closed({
        before: Type.Optional(
          Type.String({
            minLength: 1,
            maxLength: 64,
            description: 'The id of the newest notification, or the time, up to which (inclusive)',
          }),
        ),
      }),
      response: { 200: Count, ...errors(...COMMON) },
    },
    handler: async (request) => {
      const up_to = readUpTo(request.body.before);
      return { count: await markAllRead(db, readerOf(principalOf(request)), up_to) };
    },
  });
}

function registerPreferences(app: App, context: AppContext): void {
  const url = '/v1/notifications/preferences';
  app.route({
    method: 'GET',
    url,
    config: { access: 'notifications:read', people_only: true },
    schema: {
      operationId: 'getNotificationPreferences',
      summary: 'Which kinds go to the caller by mail',
      tags: ['Notifications'],
      response: { 200: Preferences, ...errors(...COMMON) },
    },
    handler: async (request, reply) => {
      const preferences = await readPreferences(context.db, userOf(principalOf(request)));
      setEtag(reply, preferences);
      return preferences;
    },
  });
  app.route({
    method: 'PUT',
    url,
    config: { access: 'notifications:write', people_only: true },
    schema: {
      operationId: 'setNotificationPreferences',
      summary: 'Say which kinds go by mail: true unless it is named; those of security cannot be muted',
      tags: ['Notifications'],
      body: SetPreferences,
      response: { 200: Preferences, ...errors(...COMMON, 'PRECONDITION_FAILED') },
    },
    handler: async (request, reply) => {
      const wanted = request.body.mail;
      const mutation = { action: 'notifications.set_preferences' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const user_id = userOf(principal);
        await lockUser(tx, user_id);
        requireMatch(request, await readPreferences(tx, user_id));
        const set = await setPreferences(tx, user_id, wanted);
        setEtag(reply, set);
        return { status: 200, body: set, target: user_id, data: { mail: wanted } };
      });
      return body;
    },
  });
}

function registerStream(app: App, { db }: AppContext, streams: EventStreams): void {
  const source: StreamSource = {
    topic: 'notifications',
    wokenBy: actorOf,
    read: async (principal, position, limit) => {
      const rows = await listRaisedSince(db, readerOf(principal), position, limit);
      return rows.map((row) => ({
        position: row.position,
        frame: { id: row.event_id, event: 'notification', data: notificationView(row) },
      }));
    },
    state: async (principal) => ({
      event: 'unread',
      data: { count: await countUnread(db, readerOf(principal)) },
    }),
  };
  app.route({
    method: 'GET',
    url: '/v1/notifications/stream',
    config: { access: 'notifications:read' },
    schema: {
      operationId: 'streamNotifications',
      summary: "The caller's notifications as they are raised, and how many are unread",
      description:
        'Events: `notification` with a Notification (again when its `count` rises), `unread` with `{count}` at the start and when it changes, `reset` when `Last-Event-ID` is not known any more, `end` with an error before the stream ends for want of a credential.',
      tags: ['Notifications'],
      headers: LastEventId,
      response: { 200: eventStream(), ...errors(...COMMON, 'QUOTA_EXCEEDED') },
    },
    handler: (request, reply) => streams.answer(request, reply, source) as never,
  });
}
