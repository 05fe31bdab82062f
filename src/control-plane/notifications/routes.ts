/**
 * Routes that list, count, stream and mark the caller's notifications, and that set which kinds are mailed. A person
 * sees the person's own notifications, and a service account those about itself. A person's API key sees those that
 * concern the account or the key's organisation.
 */
import { type TSchema, Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { EventStreams, StreamSource } from '../events/event-stream.ts';
import { principalOf } from '../http/access.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
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
  pathIds,
  Time,
} from '../http/schemas.ts';
import { actorOf, type Principal, userOf } from '../identity/principal.ts';
import { lockUser } from '../identity/store.ts';
import {
  type Preferences as Chosen,
  markAllRead,
  markRead,
  readPreferences,
  readUpTo,
  setPreferences,
} from './change-notifications.ts';
import { KIND_NAMES, KINDS, type NotificationKind, notificationView, SEVERITIES } from './model.ts';
import { countUnread, listNotifications, listRaisedSince, type NotificationReader } from './store.ts';

const MAX_LIMIT = 100;

const Notification = named('Notification', {
  id: idOf('ntf'),
  kind: oneOf(KIND_NAMES, { title: 'NotificationKind', examples: ['vm.failed'] }),
  severity: oneOf(SEVERITIES, { title: 'NotificationSeverity' }),
  title: Type.String({ maxLength: 200, examples: ['The VM of web-1 has failed'] }),
  body: Type.String({
    maxLength: 1_000,
    examples: ['The VM process ended by itself; its host keeps what it had written.'],
  }),
  resource: nullable(
    named('NotificationResource', { type: Type.String({ examples: ['instance'] }), id: idOf('inst') }),
  ),
  data: Type.Record(Type.String(), Type.Unknown(), { description: 'For programs: the subject' }),
  count: Type.Integer({
    minimum: 1,
    description: 'How often it was raised for the resource within an hour, while unread',
  }),
  created_at: Time,
  read_at: nullable(Time, { examples: [null] }),
});
const Count = closed({ count: Type.Integer({ examples: [1] }) });

function ofKinds<T extends TSchema>(schema: T) {
  return closed(Object.fromEntries(KIND_NAMES.map((kind) => [kind, schema])) as Record<NotificationKind, T>);
}
const Preferences = named('NotificationPreferences', {
  mail: ofKinds(Type.Boolean()),
  always: Type.Array(oneOf(KIND_NAMES), {
    description: 'The kinds that cannot be muted',
    maxItems: KIND_NAMES.length,
  }),
  descriptions: Type.Unsafe<Record<NotificationKind, string>>({
    ...ofKinds(Type.String({ examples: ['A VM has failed.'] })),
    description: 'When each kind is raised, for people',
  }),
});
const DESCRIPTIONS = Object.fromEntries(KIND_NAMES.map((kind) => [kind, KINDS[kind].when])) as Record<
  NotificationKind,
  string
>;

function preferencesView(chosen: Chosen) {
  return { ...chosen, descriptions: DESCRIPTIONS };
}

const SetPreferences = closed({ mail: ofKinds(Type.Optional(Type.Boolean())) });

function readerOf(principal: Principal): NotificationReader {
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
        "List the caller's notifications; for an API key, those about its creator's account or its organisation",
      tags: ['Notifications'],
      querystring: pageQuery(MAX_LIMIT, {
        status: Type.Optional(oneOf(['unread', 'read'], { description: 'Only those with this status' })),
      }),
      response: { 200: pageOf(Notification) },
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
      summary: 'Count the unread notifications',
      tags: ['Notifications'],
      response: { 200: Count },
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
      summary: 'Mark a notification as read or unread',
      tags: ['Notifications'],
      params: pathIds({ id: 'the notification' }),
      body: closed({ read: Type.Boolean() }),
      response: { 200: Notification },
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
      summary: 'Mark all present notifications as read, or those up to `before`',
      tags: ['Notifications'],
      body: closed({
        before: Type.Optional(
          Type.String({
            minLength: 1,
            maxLength: 64,
            description: 'The last notification to mark, by its id, or the last time',
            examples: ['2026-01-15T09:30:00.000Z'],
          }),
        ),
      }),
      response: { 200: Count },
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
    config: { access: 'notifications:read', people_only: true, etag: true },
    schema: {
      operationId: 'getNotificationPreferences',
      summary: 'Get which kinds of notifications are also mailed to the caller',
      tags: ['Notifications'],
      response: { 200: Preferences },
    },
    handler: async (request, reply) => {
      const preferences = await readPreferences(context.db, userOf(principalOf(request)));
      setEtag(reply, preferences);
      return preferencesView(preferences);
    },
  });
  app.route({
    method: 'PUT',
    url,
    config: { access: 'notifications:write', people_only: true, etag: true, errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'setNotificationPreferences',
      summary:
        'Choose which kinds are also mailed; kinds that are not named are, and security kinds always are',
      tags: ['Notifications'],
      body: SetPreferences,
      response: { 200: Preferences },
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
        return { status: 200, body: preferencesView(set), target: user_id, data: { mail: wanted } };
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
    config: { access: 'notifications:read', errors: ['QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'streamNotifications',
      summary: "Stream the caller's notifications as they are raised, and the unread count",
      description:
        'Events: `notification` with a Notification (again when its `count` rises); `unread` with `{count}` at the start and when it changes; `reset` when `Last-Event-ID` is no longer known; `end` with an error before the stream ends because the credential has ended.',
      tags: ['Notifications'],
      headers: LastEventId,
      response: { 200: eventStream() },
    },
    handler: (request, reply) => streams.answer(request, reply, source) as never,
  });
}
