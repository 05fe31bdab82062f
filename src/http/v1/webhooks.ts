import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { AppError } from '../../lib/errors.ts';
import { isId, type WebhookId } from '../../lib/ids.ts';
import { changeWebhook, deleteWebhook, rotateSecret } from '../../webhooks/change-webhook.ts';
import { createWebhook } from '../../webhooks/create-webhook.ts';
import { DEFAULT_GRACE_S, MAX_GRACE_S, MAX_WANTED, WANTED, WEBHOOK_STATUSES } from '../../webhooks/model.ts';
import { findWebhook, listWebhooks, type WebhookRow } from '../../webhooks/store.ts';
import { webhookView } from '../../webhooks/view.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { requireMatch, setEtag } from '../etag.ts';
import { mutate } from '../mutate.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import {
  COMMON,
  EmptyBody,
  errors,
  IdParams,
  Name,
  NoContent,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  Time,
} from '../schemas.ts';

/** A service account has no role in the organisation. */
export const ADMINS = { roles: ['owner', 'admin'], people_only: true } as const;
const WRITE = { access: 'webhooks:write', ...ADMINS } as const;

const Url = Type.String({
  minLength: 1,
  maxLength: 2048,
  description: 'https; http only to networks that the operator excepts',
});
const Events = Type.Array(oneOf(WANTED), {
  minItems: 1,
  maxItems: MAX_WANTED,
  uniqueItems: true,
  description: 'Types of events, or `*` for all',
});
const SHOWN = {
  id: Type.String(),
  url: Type.String(),
  events: Type.Array(Type.String()),
  name: Type.String(),
  status: oneOf(WEBHOOK_STATUSES),
  disabled_reason: nullable(
    Type.String({ description: '`requested`, `gone` (the receiver said 410) or `failing` (for five days)' }),
  ),
  disabled_at: nullable(Time),
  failing_since: nullable(
    Type.String({ format: 'date-time', description: 'Since when every attempt has failed' }),
  ),
  proven_at: nullable(
    Type.String({
      format: 'date-time',
      description:
        'Since when its URL has answered 2xx; null: never. All such webhooks of an organisation together send at most 100 requests in ten minutes',
    }),
  ),
  previous_secret_expires_at: nullable(
    Type.String({
      format: 'date-time',
      description: 'Until when the secret before the last rotation signs too',
    }),
  ),
  created_by: Type.String(),
  created_at: Time,
  updated_at: Time,
};
const Webhook = named('Webhook', SHOWN);
const Secret = Type.String({ description: 'The secret that signs, shown this once' });
const CreateWebhookRequest = named('CreateWebhookRequest', { url: Url, events: Events, name: Name });
const CreateWebhookResponse = named('CreateWebhookResponse', { ...SHOWN, secret: Secret });
const ChangeWebhookRequest = named('ChangeWebhookRequest', {
  url: Type.Optional(Url),
  events: Type.Optional(Events),
  name: Type.Optional(Name),
  status: Type.Optional(oneOf(WEBHOOK_STATUSES)),
});
const RotateWebhookSecretRequest = named('RotateWebhookSecretRequest', {
  grace_seconds: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_GRACE_S,
      default: DEFAULT_GRACE_S,
      description: 'For how long the secret before signs too',
    }),
  ),
});

/** The id of a path; one that cannot be ours is as unknown as any other. @throws AppError NOT_FOUND */
export function webhookId({ id }: { readonly id: string }): WebhookId {
  if (!isId('wh', id)) throw new AppError('NOT_FOUND');
  return id;
}

const checkOf = (request: FastifyRequest) => (before: WebhookRow) => requireMatch(request, etagValue(before));
/** What a change changes; what a receiver answers does not. */
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
    config: { ...WRITE, idempotent: true },
    schema: {
      operationId: 'createWebhook',
      summary: 'Make a webhook; nothing is sent by that',
      tags: ['Webhooks'],
      body: CreateWebhookRequest,
      response: { 201: CreateWebhookResponse, ...errors(...COMMON, 'QUOTA_EXCEEDED') },
    },
    handler: async (request, reply) => {
      // Before the transaction, since a name server may take its time; told within it, since a kept answer comes first.
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
      summary: "The organisation's webhooks",
      tags: ['Webhooks'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Webhook), ...errors(...COMMON) },
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
    config: { access: 'webhooks:read' },
    schema: {
      operationId: 'getWebhook',
      summary: 'One webhook, without its secret',
      tags: ['Webhooks'],
      params: IdParams,
      querystring: EmptyBody,
      response: { 200: Webhook, ...errors(...COMMON, 'NOT_FOUND') },
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
    config: WRITE,
    schema: {
      operationId: 'changeWebhook',
      summary: 'Change a webhook, disable it or enable it again',
      tags: ['Webhooks'],
      params: IdParams,
      body: ChangeWebhookRequest,
      response: { 200: Webhook, ...errors(...COMMON, 'NOT_FOUND', 'PRECONDITION_FAILED') },
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
    config: WRITE,
    schema: {
      operationId: 'deleteWebhook',
      summary: 'Delete a webhook with its deliveries',
      tags: ['Webhooks'],
      params: IdParams,
      body: EmptyBody,
      response: { 204: NoContent, ...errors(...COMMON, 'NOT_FOUND', 'PRECONDITION_FAILED') },
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
    config: WRITE,
    schema: {
      operationId: 'rotateWebhookSecret',
      summary: 'Give a webhook a new secret; for a while both sign',
      tags: ['Webhooks'],
      params: IdParams,
      body: RotateWebhookSecretRequest,
      response: {
        200: CreateWebhookResponse,
        ...errors(...COMMON, 'NOT_FOUND', 'PRECONDITION_FAILED'),
      },
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
