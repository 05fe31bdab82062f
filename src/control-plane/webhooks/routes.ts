/**
 * Routes of webhooks (create, list, show, change, delete, rotate the secret), and of their deliveries (list, show,
 * ping, redeliver, replay).
 */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { isId, type WebhookDeliveryId, type WebhookId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { readTime } from '../events/log-filters.ts';
import { principalOf } from '../http/access.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  EmptyBody,
  idOf,
  NoContent,
  named,
  nameText,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import {
  changeWebhook,
  createWebhook,
  deleteWebhook,
  pingWebhook,
  redeliverDelivery,
  replaySince,
  rotateSecret,
  showDelivery,
} from './change-webhook.ts';
import {
  DEFAULT_GRACE_S,
  DELIVERY_STATES,
  deliveryDetailView,
  deliveryView,
  MAX_WANTED,
  SECRET_GRACE_MAX_S,
  WANTED,
  WEBHOOK_STATUSES,
  webhookView,
} from './model.ts';
import { findWebhook, listDeliveries, listWebhooks, type WebhookRow } from './store.ts';

/** Never a service account: it has no role in the organisation. */
const ADMINS = { roles: ['owner', 'admin'], people_only: true } as const;
const WRITE = { access: 'webhooks:write', ...ADMINS } as const;

const EXAMPLE_URL = 'https://hooks.example.org/berth';
const EXAMPLE_EVENTS = ['vm.started', 'vm.stopped'];
const EXAMPLE_NAME = 'chat';
const Url = Type.String({
  minLength: 1,
  maxLength: 2048,
  description: 'https; http only to networks that the operator allows',
  examples: [EXAMPLE_URL],
});
const Events = Type.Array(oneOf(WANTED), {
  minItems: 1,
  maxItems: MAX_WANTED,
  uniqueItems: true,
  description: 'Types of events, or `*` for all',
  examples: [EXAMPLE_EVENTS],
});
const SHOWN = {
  id: idOf('wh'),
  url: Type.String({ examples: [EXAMPLE_URL] }),
  events: Type.Array(Type.String(), { examples: [EXAMPLE_EVENTS] }),
  name: Type.String({ examples: [EXAMPLE_NAME] }),
  status: oneOf(WEBHOOK_STATUSES),
  disabled_reason: nullable(
    Type.String({
      description: '`requested`, `gone` (the receiver answered 410) or `failing` (for five days)',
    }),
    { examples: [null] },
  ),
  disabled_at: nullable(Time, { examples: [null] }),
  failing_since: nullable(
    Type.String({ format: 'date-time', description: 'Every attempt since this time has failed' }),
    { examples: [null] },
  ),
  proven_at: nullable(
    Type.String({
      format: 'date-time',
      description:
        'When its URL first answered 2xx; null: never yet. The webhooks of an organisation without such an answer send at most 100 requests in ten minutes, all together',
    }),
  ),
  previous_secret_expires_at: nullable(
    Type.String({
      format: 'date-time',
      description: 'After a rotation, the previous secret also signs until this time',
    }),
    { examples: [null] },
  ),
  created_by: idOf('usr'),
  created_at: Time,
  updated_at: Time,
};
const Webhook = named('Webhook', SHOWN);
const Secret = Type.String({ description: 'The signing secret, shown only once', examples: ['whsec_…'] });
const CreateWebhookRequest = named('CreateWebhookRequest', {
  url: Url,
  events: Events,
  name: nameText(EXAMPLE_NAME),
});
const CreateWebhookResponse = named('CreateWebhookResponse', { ...SHOWN, secret: Secret });
const ChangeWebhookRequest = named('ChangeWebhookRequest', {
  url: Type.Optional(Url),
  events: Type.Optional(Events),
  name: Type.Optional(nameText(EXAMPLE_NAME)),
  status: Type.Optional(oneOf(WEBHOOK_STATUSES)),
});
const RotateWebhookSecretRequest = named('RotateWebhookSecretRequest', {
  grace_seconds: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: SECRET_GRACE_MAX_S,
      default: DEFAULT_GRACE_S,
      description: 'For how long the previous secret signs too',
      examples: [3600],
    }),
  ),
});

const WebhookParams = pathIds({ id: 'the webhook' });

/** The webhook of a path. @throws AppError NOT_FOUND also where the id is malformed */
function webhookId({ id }: { readonly id: string }): WebhookId {
  if (!isId('wh', id)) throw new AppError('NOT_FOUND');
  return id;
}

const checkOf = (request: FastifyRequest) => (before: WebhookRow) => requireMatch(request, etagValue(before));
/** A change of the webhook changes its version; an answer of its receiver does not. */
const etagValue = ({ id, version }: WebhookRow) => ({ id, version });

export function registerWebhooks(app: App, context: AppContext, cursors: CursorSealer): void {
  registerCreate(app, context);
  registerReads(app, context, cursors);
  registerChange(app, context);
  registerDelete(app, context);
  registerRotate(app, context);
}

function registerCreate(app: App, context: AppContext): void {
  const { quotas, webhooks } = context;
  const { outbound, secrets } = webhooks;
  app.route({
    method: 'POST',
    url: '/v1/webhooks',
    config: { ...WRITE, idempotent: true, etag: true, errors: ['QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'createWebhook',
      summary: 'Create a webhook; this sends nothing',
      tags: ['Webhooks'],
      body: CreateWebhookRequest,
      response: { 201: CreateWebhookResponse },
    },
    handler: async (request, reply) => {
      // Judged before the transaction, because a name server may be slow. Refused within it, because a replay comes first.
      const judged = await outbound.checkUrl(request.body.url).then(
        ({ href }) => ({ href }),
        (refusal: unknown) => ({ refusal }),
      );
      const mutation = { action: 'webhook.create' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        if ('refusal' in judged) throw judged.refusal;
        const made = await createWebhook(tx, quotas, principal, secrets, {
          ...request.body,
          url: judged.href,
        });
        const shown = webhookView(made);
        setEtag(reply, etagValue(made));
        return {
          status: 201,
          body: { ...shown, secret: made.secret },
          target: made.id,
          data: audited(shown),
        };
      });
      reply.header('cache-control', 'no-store');
      return reply.status(201).send(body);
    },
  });
}

function audited({ name, url, events, status }: ReturnType<typeof webhookView>) {
  return { name, url, events, status };
}

function registerReads(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/webhooks',
    config: { access: 'webhooks:read' },
    schema: {
      operationId: 'listWebhooks',
      summary: "List the organisation's webhooks",
      tags: ['Webhooks'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Webhook) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'webhooks',
        list: (before, count) => listWebhooks(db, principal.org_id, before, count),
        show: webhookView,
      });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/webhooks/:id',
    config: { access: 'webhooks:read', etag: true },
    schema: {
      operationId: 'getWebhook',
      summary: 'Get a webhook, without its secret',
      tags: ['Webhooks'],
      params: WebhookParams,
      response: { 200: Webhook },
    },
    handler: async (request, reply) => {
      const row = await findWebhook(db, principalOf(request).org_id, webhookId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      setEtag(reply, etagValue(row));
      return webhookView(row);
    },
  });
}

function registerChange(app: App, context: AppContext): void {
  app.route({
    method: 'PATCH',
    url: '/v1/webhooks/:id',
    config: { ...WRITE, etag: true, errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'changeWebhook',
      summary: 'Change, disable or enable a webhook',
      tags: ['Webhooks'],
      params: WebhookParams,
      body: ChangeWebhookRequest,
      response: { 200: Webhook },
    },
    handler: async (request, reply) => {
      const { url: text, ...rest } = request.body;
      const url = text === undefined ? {} : { url: (await context.webhooks.outbound.checkUrl(text)).href };
      const mutation = { action: 'webhook.change' };
      let version = 0;
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const id = webhookId(request.params);
        const row = await changeWebhook(tx, principal, id, { ...rest, ...url }, checkOf(request));
        version = row.version;
        return { status: 200, body: webhookView(row), target: id, data: { ...rest, ...url } };
      });
      setEtag(reply, { id: body.id, version });
      return body;
    },
  });
}

function registerDelete(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/webhooks/:id',
    config: { ...WRITE, errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'deleteWebhook',
      summary: 'Delete a webhook and its deliveries',
      tags: ['Webhooks'],
      params: WebhookParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      await mutate(context, request, reply, { action: 'webhook.delete' }, async (tx, principal) => {
        const id = webhookId(request.params);
        const gone = await deleteWebhook(tx, principal, id, checkOf(request));
        return { status: 204, body: null, target: id, data: audited(webhookView(gone)) };
      });
      return reply.status(204).send(null);
    },
  });
}

function registerRotate(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/webhooks/:id/rotate-secret',
    config: { ...WRITE, etag: true, errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'rotateWebhookSecret',
      summary: 'Rotate the secret of a webhook; for a grace period both sign',
      tags: ['Webhooks'],
      params: WebhookParams,
      body: RotateWebhookSecretRequest,
      response: { 200: CreateWebhookResponse },
    },
    handler: async (request, reply) => {
      const { secrets } = context.webhooks;
      const grace_seconds = request.body.grace_seconds ?? DEFAULT_GRACE_S;
      const mutation = { action: 'webhook.rotate_secret' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const id = webhookId(request.params);
        const row = await rotateSecret(tx, principal, secrets, id, grace_seconds, checkOf(request));
        const shown = { ...webhookView(row), secret: row.secret };
        setEtag(reply, etagValue(row));
        return { status: 200, body: shown, target: id, data: { grace_seconds } };
      });
      reply.header('cache-control', 'no-store');
      return body;
    },
  });
}

const READ_DELIVERIES = { access: 'webhooks:read', ...ADMINS } as const;
const SEND_AGAIN = { ...WRITE, idempotent: true, errors: ['CONFLICT'] } as const;

const ATTEMPT = {
  number: Type.Integer({ examples: [1] }),
  at: Time,
  status: nullable(Type.Integer({ description: 'null: there was no answer', examples: [503] })),
  latency_ms: Type.Integer({ examples: [38] }),
  error: nullable(Type.String({ description: 'Why it failed', examples: ['not a 2xx status'] })),
  response: Type.String({ description: 'The first 4 KiB of the answer', examples: ['busy'] }),
};
const Attempt = named('WebhookAttempt', ATTEMPT);
const DELIVERY = {
  id: idOf('whd'),
  event_id: idOf('evt', { description: 'The `webhook-id` of each attempt' }),
  event_type: nullable(
    Type.String({ description: 'null: the event is older than 30 days', examples: ['vm.started'] }),
  ),
  resource: nullable(
    named('EventResource', {
      type: Type.String({
        description: '`instance`, `ssh_key`, `api_key`, `member` or `webhook`',
        examples: ['instance'],
      }),
      id: Type.String({ examples: ['inst_01k5x8m2vq7r4t9wz3b6c8d0ef'] }),
      name: nullable(Type.String({ description: 'Its name at that time', examples: ['web'] })),
    }),
    { description: 'What the event is about; null: the event is older than 30 days' },
  ),
  instance_id: nullable(idOf('inst')),
  status: oneOf(DELIVERY_STATES),
  attempt_count: Type.Integer({ examples: [1] }),
  next_attempt_at: nullable(Time),
  created_at: Time,
  attempts: Type.Array(Attempt, { description: 'The last ten, oldest first; kept for 14 days' }),
};
const Delivery = named('WebhookDelivery', DELIVERY);
const Headers = (description: string, example: Record<string, string>) =>
  Type.Record(Type.String(), Type.String(), { description, examples: [example] });
const DeliveryDetail = named('WebhookDeliveryDetail', {
  ...DELIVERY,
  request: nullable(
    named('WebhookRequest', {
      method: Type.Literal('POST'),
      url: Type.String({ examples: ['https://hooks.example.org/berth'] }),
      headers: Headers(
        'Signed with the present secret; after a rotation, earlier attempts had another signature',
        {
          'webhook-id': 'evt_01k5x8m2vq7r4t9wz3b6c8d0ef',
        },
      ),
      body: Type.String({ description: 'The exact bytes', examples: ['{"type":"vm.started",…}'] }),
    }),
    {
      description:
        'The request of the last attempt; before the first, as it would be sent now; null: the event is older than 30 days',
    },
  ),
  attempts: Type.Array(
    named('WebhookAttemptDetail', {
      ...ATTEMPT,
      url: Type.String({ examples: ['https://hooks.example.org/berth'] }),
      response_headers: Headers('The first 2 KiB of the headers of the answer, without cookies', {
        'content-type': 'text/plain',
      }),
    }),
    { description: 'The last ten, oldest first; kept for 14 days' },
  ),
});
const DeliveryParams = pathIds({ id: 'the webhook', delivery_id: 'the delivery' });

/** The delivery of a path. @throws AppError NOT_FOUND also where the id is malformed */
function deliveryId({ delivery_id }: { readonly delivery_id: string }): WebhookDeliveryId {
  if (!isId('whd', delivery_id)) throw new AppError('NOT_FOUND');
  return delivery_id;
}

export function registerWebhookDeliveries(app: App, context: AppContext, cursors: CursorSealer): void {
  registerList(app, context, cursors);
  registerOne(app, context);
  registerPing(app, context);
  registerRedeliver(app, context);
  registerReplay(app, context);
}

function registerList(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/webhooks/:id/deliveries',
    config: READ_DELIVERIES,
    schema: {
      operationId: 'listWebhookDeliveries',
      summary: 'List the deliveries of a webhook, the newest events first',
      tags: ['Webhooks'],
      params: WebhookParams,
      querystring: pageQuery(200, { status: Type.Optional(oneOf(DELIVERY_STATES)) }),
      response: { 200: pageOf(Delivery) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      const id = webhookId(request.params);
      return pageOfList(cursors, principal, request, {
        route: 'webhook-deliveries',
        of: { webhook_id: id },
        list: async (before: string | null, count: number) => {
          if (!(await findWebhook(db, principal.org_id, id))) throw new AppError('NOT_FOUND');
          const rows = await listDeliveries(
            db,
            id,
            request.query,
            before === null ? null : Number(before),
            count,
          );
          // Deliveries are in the order of events, so the cursor is an event's position.
          return rows.map((row) => ({ id: String(row.position), row }));
        },
        show: ({ row }) => deliveryView(row),
      });
    },
  });
}

function registerOne(app: App, { db, webhooks }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/webhooks/:id/deliveries/:delivery_id',
    config: READ_DELIVERIES,
    schema: {
      operationId: 'getWebhookDelivery',
      summary: 'Get a delivery with its request and the answer to each attempt',
      tags: ['Webhooks'],
      params: DeliveryParams,
      response: { 200: DeliveryDetail },
    },
    handler: async (request) => {
      const { org_id } = principalOf(request);
      const id = webhookId(request.params);
      const shown = await showDelivery(db, webhooks.secrets, org_id, id, deliveryId(request.params));
      return deliveryDetailView(shown.row, shown.request);
    },
  });
}

function registerPing(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/webhooks/:id/ping',
    config: SEND_AGAIN,
    schema: {
      operationId: 'pingWebhook',
      summary: 'Send the event `webhook.ping` to this webhook',
      tags: ['Webhooks'],
      params: WebhookParams,
      body: EmptyBody,
      response: {
        202: named('PingWebhookResponse', {
          event_id: idOf('evt', { description: 'The `webhook-id` of the ping' }),
        }),
      },
    },
    handler: async (request, reply) => {
      const mutation = { action: 'webhook.ping' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const id = webhookId(request.params);
        const event_id = await pingWebhook(tx, principal, id);
        return { status: 202, body: { event_id }, target: id };
      });
      return reply.status(202).send(body);
    },
  });
}

function registerRedeliver(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/webhooks/:id/deliveries/:delivery_id/redeliver',
    config: SEND_AGAIN,
    schema: {
      operationId: 'redeliverWebhookDelivery',
      summary: 'Redeliver: send a delivery again with the same `webhook-id`, whatever its outcome was',
      tags: ['Webhooks'],
      params: DeliveryParams,
      body: EmptyBody,
      response: { 202: Delivery },
    },
    handler: async (request, reply) => {
      const mutation = { action: 'webhook.redeliver' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const id = webhookId(request.params);
        const delivery_id = deliveryId(request.params);
        const row = await redeliverDelivery(tx, principal, id, delivery_id);
        return { status: 202, body: deliveryView(row), target: id, data: { delivery_id } };
      });
      return reply.status(202).send(body);
    },
  });
}

function registerReplay(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/webhooks/:id/replay',
    config: SEND_AGAIN,
    schema: {
      operationId: 'replayWebhook',
      summary: 'Send every event since a time again, including those missed while disabled',
      tags: ['Webhooks'],
      params: WebhookParams,
      body: named('ReplayWebhookRequest', {
        since: Type.String({
          maxLength: 40,
          description: 'RFC 3339; at most 27 days ago',
          examples: ['2026-01-15T09:30:00.000Z'],
        }),
      }),
      response: {
        202: named('ReplayWebhookResponse', {
          count: Type.Integer({ description: 'How many events are sent', examples: [1] }),
        }),
      },
    },
    handler: async (request, reply) => {
      const since = readTime('since', request.body.since);
      const mutation = { action: 'webhook.replay' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const id = webhookId(request.params);
        const count = await replaySince(tx, principal, id, since);
        return { status: 202, body: { count }, target: id, data: { since: since.toISOString(), count } };
      });
      return reply.status(202).send(body);
    },
  });
}
