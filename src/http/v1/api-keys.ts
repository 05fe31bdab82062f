import type { FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import { createApiKey } from '../../api-keys/create-api-key.ts';
import { holdLineage, revokeApiKey, revokeApiKeys } from '../../api-keys/revoke-api-key.ts';
import { MAX_GRACE_S, rotateApiKey } from '../../api-keys/rotate-api-key.ts';
import { type ApiKeyRow, findApiKey, listApiKeys } from '../../api-keys/store.ts';
import { apiKeyView } from '../../api-keys/view.ts';
import { requireKeysOf, viewerOf } from '../../api-keys/viewer.ts';
import type { Principal } from '../../auth/principal.ts';
import { refuseEscalation } from '../../auth/scope-within.ts';
import type { Tx } from '../../db/pool.ts';
import { present } from '../../lib/assert.ts';
import { AppError } from '../../lib/errors.ts';
import { type ApiKeyId, isId, type ServiceAccountId } from '../../lib/ids.ts';
import { MAX_NETWORKS } from '../../lib/networks.ts';
import { checkQuota } from '../../orgs/quotas.ts';
import { revokeRegisteredBy } from '../../ssh-keys/account-keys.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import { appendAudit } from '../append-audit.ts';
import type { AppContext } from '../context.ts';
import { requireMatch, setEtag } from '../etag.ts';
import { mutate } from '../mutate.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import { peek } from '../path-organisation.ts';
import {
  COMMON,
  closed,
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
  Scope,
  Time,
} from '../schemas.ts';
import { SERVICE_ACCOUNT_ID_PATTERN } from '../validation-words.ts';

const MAX_LIFETIME_S = 10 * 365 * 86_400;
const ServiceAccountIdSchema = Type.Unsafe<ServiceAccountId>({
  type: 'string',
  maxLength: 29,
  pattern: SERVICE_ACCOUNT_ID_PATTERN,
  description: 'The service account that holds it; absent: the caller does',
});

const SHOWN = {
  id: Type.String(),
  name: Type.String(),
  scope: Type.String(),
  service_account_id: nullable(
    Type.String({ description: 'The service account that holds it; null: its maker does' }),
  ),
  allowed_cidrs: Type.Array(Type.String(), { description: 'Where it may be used from; empty: everywhere' }),
  prefix: Type.String({ description: 'How the key begins' }),
  last4: Type.String({ description: 'How the key ends' }),
  created_at: Time,
  last_used_at: nullable(Time),
  expires_at: nullable(Time),
  previous_expires_at: nullable(
    Type.String({
      format: 'date-time',
      description: 'Until when the key before the last rotation works; null: it has ended at once',
    }),
  ),
  created_by_key: nullable(
    Type.String({ description: 'The API key that made it, which may be gone; null: a session did' }),
  ),
};
const ApiKey = named('ApiKey', SHOWN);
const CreateApiKeyRequest = named('CreateApiKeyRequest', {
  name: Name,
  scope: Scope,
  expires_in_seconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_LIFETIME_S,
      description: 'Absent: it does not expire, or with the API key that makes it, which it cannot outlive',
    }),
  ),
  service_account_id: Type.Optional(ServiceAccountIdSchema),
  allowed_cidrs: Type.Optional(
    Type.Array(Type.String({ minLength: 1, maxLength: 64 }), {
      maxItems: MAX_NETWORKS,
      description:
        'Addresses or networks that it may be used from; empty or absent: everywhere, or wherever the API key that makes it may be',
    }),
  ),
});
const CreateApiKeyResponse = named('CreateApiKeyResponse', {
  ...SHOWN,
  key: Type.String({ description: 'The plain key, shown this once' }),
});
const RotateApiKeyRequest = named('RotateApiKeyRequest', {
  grace_seconds: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_GRACE_S,
      default: 0,
      description: 'For how long the key before goes on',
    }),
  ),
});

export function registerApiKeys(app: App, context: AppContext, cursors: CursorSealer): void {
  registerCreate(app, context);
  registerReads(app, context, cursors);
  registerRotate(app, context);
  registerRevoke(app, context);
}

/** What is refused whatever else the body holds: 403 comes before 400. @throws AppError FORBIDDEN */
async function refuseBeyondOwn(request: FastifyRequest): Promise<void> {
  const principal = principalOf(request);
  const holder = peek(request.body, 'service_account_id');
  if (holder !== undefined) requireKeysOf(principal, holder as ServiceAccountId);
  refuseEscalation(principal, request.body);
}

function registerCreate(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/api-keys',
    config: {
      access: 'api_keys:write',
      people_only: true,
      confirmed_address: true,
      idempotent: true,
    },
    preValidation: refuseBeyondOwn,
    schema: {
      operationId: 'createApiKey',
      summary: 'Make an API key',
      tags: ['API keys'],
      body: CreateApiKeyRequest,
      response: {
        201: CreateApiKeyResponse,
        ...errors(
          ...COMMON,
          'NOT_FOUND',
          'QUOTA_EXCEEDED',
          'IDEMPOTENCY_IN_PROGRESS',
          'IDEMPOTENCY_KEY_REUSED',
        ),
      },
    },
    handler: async (request, reply) => {
      const mutation = { action: 'api_key.create' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        await checkQuota(tx, context.quotas, principal.org_id, { api_keys: 1 });
        const made = await createApiKey(tx, principal, request.body);
        const shown = apiKeyView(made);
        setEtag(reply, etagValue(made));
        return { status: 201, body: { ...shown, key: made.key }, target: made.id, data: auditData(shown) };
      });
      reply.header('cache-control', 'no-store');
      return reply.status(201).send(body);
    },
  });
}

function auditData({ name, scope, service_account_id, allowed_cidrs, expires_at }: Static<typeof ApiKey>) {
  return { name, scope, service_account_id, allowed_cidrs, expires_at };
}

function registerReads(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/api-keys',
    config: { access: 'api_keys:read' },
    schema: {
      operationId: 'listApiKeys',
      summary: "The caller's API keys; for owners and administrators also those of service accounts",
      tags: ['API keys'],
      querystring: pageQuery(200, { service_account_id: Type.Optional(ServiceAccountIdSchema) }),
      response: { 200: pageOf(ApiKey), ...errors(...COMMON) },
    },
    onRequest: async (request) => {
      const holder = peek(request.query, 'service_account_id');
      if (holder !== undefined) requireKeysOf(principalOf(request), holder as ServiceAccountId);
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'api-keys',
        list: (before, count) => listApiKeys(db, viewerOf(principal), request.query, before, count),
        show: apiKeyView,
      });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/api-keys/:id',
    config: { access: 'api_keys:read' },
    schema: {
      operationId: 'getApiKey',
      summary: 'One API key, without the key',
      tags: ['API keys'],
      params: IdParams,
      querystring: EmptyBody,
      response: { 200: ApiKey, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const viewer = viewerOf(principalOf(request));
      const row = isId('ak', id) ? await findApiKey(db, viewer, id) : undefined;
      if (!row) throw new AppError('NOT_FOUND');
      setEtag(reply, etagValue(row));
      return apiKeyView(row);
    },
  });
}

/** What a change of a key changes; its use does not. */
function etagValue({ id, last4, previous_expires_at }: Parameters<typeof apiKeyView>[0]) {
  return { id, last4, previous_expires_at };
}

function registerRotate(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/api-keys/:id/rotate',
    config: { access: 'session', sudo: true },
    schema: {
      operationId: 'rotateApiKey',
      summary: 'Give an API key a new secret under the same id',
      tags: ['API keys'],
      params: IdParams,
      body: RotateApiKeyRequest,
      response: {
        200: CreateApiKeyResponse,
        ...errors(...COMMON, 'SUDO_REQUIRED', 'NOT_FOUND', 'CONFLICT', 'PRECONDITION_FAILED'),
      },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const grace_seconds = request.body.grace_seconds ?? 0;
      const { body } = await mutate(
        context,
        request,
        reply,
        { action: 'api_key.rotate' },
        async (tx, principal) => {
          if (!isId('ak', id)) throw new AppError('NOT_FOUND');
          const row = await rotateApiKey(tx, principal, id, grace_seconds, (before) =>
            requireMatch(request, etagValue(before)),
          );
          const shown = apiKeyView(row);
          setEtag(reply, etagValue(row));
          return { status: 200, body: { ...shown, key: row.key }, target: id, data: { grace_seconds } };
        },
      );
      reply.header('cache-control', 'no-store');
      return body;
    },
  });
}

function registerRevoke(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/api-keys/:id',
    config: { access: 'api_keys:write', people_only: true },
    schema: {
      operationId: 'revokeApiKey',
      summary: 'Revoke an API key, at once',
      tags: ['API keys'],
      params: IdParams,
      querystring: closed({
        descendants: Type.Optional(
          oneOf(['true', 'false'], {
            description: 'Also every API key and SSH key that was made with it, by way of other keys too',
          }),
        ),
      }),
      body: EmptyBody,
      response: { 204: NoContent, ...errors(...COMMON, 'NOT_FOUND', 'PRECONDITION_FAILED') },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const check = (before: ApiKeyRow) => requireMatch(request, etagValue(before));
      await mutate(context, request, reply, REVOKE, async (tx, principal) => {
        if (!isId('ak', id)) throw new AppError('NOT_FOUND');
        const gone =
          request.query.descendants === 'true'
            ? await revokeLineage(context, tx, request, principal, id, check)
            : await revokeApiKey(tx, principal, id, check);
        return { status: 204, body: null, target: id, data: auditData(apiKeyView(gone)) };
      });
      return reply.status(204).send(null);
    },
  });
}

const REVOKE = { action: 'api_key.revoke' };

/** Each that goes has an audit entry, but the first, which the mutation notes. */
async function revokeLineage(
  context: AppContext,
  tx: Tx,
  request: FastifyRequest,
  principal: Principal,
  id: ApiKeyId,
  check: (before: ApiKeyRow) => void,
): Promise<ApiKeyRow> {
  const lineage = await holdLineage(tx, principal, id, check);
  const [first, ...descendants] = lineage;
  const ids = lineage.map((key) => key.id);
  for (const { row, org_ids } of await revokeRegisteredBy(tx, principal, ids)) {
    const entry = { action: 'ssh_key.revoke', target: row.id, data: { fingerprint: row.fingerprint } };
    for (const org_id of org_ids) await appendAudit(context, tx, request, org_id, entry);
  }
  await revokeApiKeys(tx, principal, lineage);
  for (const key of descendants) {
    const entry = { ...REVOKE, target: key.id, data: auditData(apiKeyView(key)) };
    await appendAudit(context, tx, request, principal.org_id, entry);
  }
  return present(first, 'the key itself');
}
