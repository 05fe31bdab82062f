/** Routes of deliveries. */
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { isId, type WebhookDeliveryId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { readTime } from '../events/log-filters.ts';
import { principalOf } from '../http/access.ts';
import { type App, mutate } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  EmptyBody,
  idOf,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import { pingWebhook } from './change-webhook.ts';
import { redeliverDelivery, replaySince, showDelivery } from './deliveries.ts';
import { DELIVERY_STATES, deliveryDetailView, deliveryView } from './model.ts';
import { ADMINS, WebhookParams, webhookId } from './routes.ts';
import { findWebhook, listDeliveries } from './store.ts';

const READ = { access: 'webhooks:read', ...ADMINS } as const;
const WRITE = { access: 'webhooks:write', ...ADMINS, idempotent: true } as const;

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
    config: READ,
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
    config: READ,
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
    config: { ...WRITE, errors: ['CONFLICT'] },
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
    config: { ...WRITE, errors: ['CONFLICT'] },
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
    config: { ...WRITE, errors: ['CONFLICT'] },
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
