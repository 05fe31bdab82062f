/** Serves `/v1/api-keys`: creates, lists, rotates and revokes API keys. */
import type { FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { type ApiKeyId, isId, type ServiceAccountId } from '../../shared/ids.ts';
import { MAX_NETWORKS } from '../../shared/networks.ts';
import type { AppContext } from '../context.ts';
import type { Tx } from '../db/pool.ts';
import { peek, principalOf } from '../http/access.ts';
import { SERVICE_ACCOUNT_ID_PATTERN } from '../http/errors.ts';
import { type App, appendAudit, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  EmptyBody,
  EXAMPLE_SCOPE,
  idOf,
  NoContent,
  named,
  nameText,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  pathIds,
  Scope,
  Time,
} from '../http/schemas.ts';
import { refuseEscalation } from '../identity/permissions.ts';
import type { Principal } from '../identity/principal.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { revokeRegisteredBy } from '../ssh-keys/account-keys.ts';
import {
  createApiKey,
  KEY_GRACE_MAX_S,
  lockWithDescendants,
  revokeApiKey,
  revokeApiKeys,
  rotateApiKey,
} from './change-api-key.ts';
import { apiKeyView, requireKeysOf, viewerOf } from './model.ts';
import { type ApiKeyRow, findApiKey, listApiKeys } from './store.ts';

const MAX_LIFETIME_S = 10 * 365 * 86_400;
const ServiceAccountIdSchema = Type.Unsafe<ServiceAccountId>({
  type: 'string',
  maxLength: 29,
  pattern: SERVICE_ACCOUNT_ID_PATTERN,
  description: 'The service account that holds the key; absent: the caller holds it',
  examples: [],
});

const EXAMPLE_NAME = 'deploy';
const EXAMPLE_NETWORKS = ['203.0.113.0/24'];
const SHOWN = {
  id: idOf('ak'),
  name: Type.String({ examples: [EXAMPLE_NAME] }),
  scope: Type.String({ examples: [EXAMPLE_SCOPE] }),
  service_account_id: nullable(
    idOf('sa', { description: 'The service account that holds the key; null: its creator holds it' }),
    { examples: [null] },
  ),
  allowed_cidrs: Type.Array(Type.String(), {
    description: 'The networks that it may be used from; empty: everywhere',
    examples: [EXAMPLE_NETWORKS],
  }),
  prefix: Type.String({ description: 'The first characters of the key', examples: ['berth_live_4kV0'] }),
  last4: Type.String({ description: 'The last characters of the key', examples: ['x7Qd'] }),
  created_at: Time,
  last_used_at: nullable(Time),
  expires_at: nullable(Time),
  previous_expires_at: nullable(
    Type.String({
      format: 'date-time',
      description: 'The secret before the last rotation works until this time; null: it no longer works',
    }),
    { examples: [null] },
  ),
  created_by_key: nullable(
    idOf('ak', {
      description: 'The API key that created it, which may no longer exist; null: a session created it',
    }),
  ),
};
const ApiKey = named('ApiKey', SHOWN);
const CreateApiKeyRequest = named('CreateApiKeyRequest', {
  name: nameText(EXAMPLE_NAME),
  scope: Scope,
  expires_in_seconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_LIFETIME_S,
      description:
        'Absent: it does not expire. A key created with an API key expires with that key at the latest',
      examples: [7_776_000],
    }),
  ),
  service_account_id: Type.Optional(ServiceAccountIdSchema),
  allowed_cidrs: Type.Optional(
    Type.Array(Type.String({ minLength: 1, maxLength: 64 }), {
      maxItems: MAX_NETWORKS,
      description:
        'Addresses or networks that it may be used from; empty or absent: everywhere, or those of the API key that creates it',
      examples: [EXAMPLE_NETWORKS],
    }),
  ),
});
const CreateApiKeyResponse = named('CreateApiKeyResponse', {
  ...SHOWN,
  key: Type.String({ description: 'The plain key, shown only once', examples: ['berth_live_…'] }),
});
const RotateApiKeyRequest = named('RotateApiKeyRequest', {
  grace_seconds: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: KEY_GRACE_MAX_S,
      default: 0,
      description: 'For how long the previous secret keeps working',
      examples: [3600],
    }),
  ),
});

const ApiKeyParams = pathIds({ id: 'the API key' });

export function registerApiKeys(app: App, context: AppContext, cursors: CursorSealer): void {
  registerCreate(app, context);
  registerReads(app, context, cursors);
  registerRotate(app, context);
  registerRevoke(app, context);
}

/** 403 comes before 400, so this precedes the validation of the body. @throws AppError FORBIDDEN */
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
      etag: true,
      errors: ['NOT_FOUND', 'QUOTA_EXCEEDED'],
    },
    preValidation: refuseBeyondOwn,
    schema: {
      operationId: 'createApiKey',
      summary: 'Create an API key',
      tags: ['API keys'],
      body: CreateApiKeyRequest,
      response: { 201: CreateApiKeyResponse },
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
      summary: "List the caller's API keys; for owners and admins, also those of service accounts",
      tags: ['API keys'],
      querystring: pageQuery(200, { service_account_id: Type.Optional(ServiceAccountIdSchema) }),
      response: { 200: pageOf(ApiKey) },
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
    config: { access: 'api_keys:read', etag: true },
    schema: {
      operationId: 'getApiKey',
      summary: 'Get an API key, without the key itself',
      tags: ['API keys'],
      params: ApiKeyParams,
      response: { 200: ApiKey },
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

/** A rotation changes these; the use of the key does not. */
function etagValue({ id, last4, previous_expires_at }: Parameters<typeof apiKeyView>[0]) {
  return { id, last4, previous_expires_at };
}

function registerRotate(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/api-keys/:id/rotate',
    config: { access: 'session', sudo: true, etag: true, errors: ['CONFLICT', 'PRECONDITION_FAILED'] },
    schema: {
      operationId: 'rotateApiKey',
      summary: 'Rotate an API key: give it a new secret under the same id',
      tags: ['API keys'],
      params: ApiKeyParams,
      body: RotateApiKeyRequest,
      response: { 200: CreateApiKeyResponse },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const grace_seconds = request.body.grace_seconds ?? 0;
      const mutation = { action: 'api_key.rotate' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        if (!isId('ak', id)) throw new AppError('NOT_FOUND');
        const row = await rotateApiKey(tx, principal, id, grace_seconds, (before) =>
          requireMatch(request, etagValue(before)),
        );
        const shown = apiKeyView(row);
        setEtag(reply, etagValue(row));
        return { status: 200, body: { ...shown, key: row.key }, target: id, data: { grace_seconds } };
      });
      reply.header('cache-control', 'no-store');
      return body;
    },
  });
}

function registerRevoke(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/api-keys/:id',
    config: { access: 'api_keys:write', people_only: true, errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'revokeApiKey',
      summary: 'Revoke an API key at once',
      tags: ['API keys'],
      params: ApiKeyParams,
      querystring: closed({
        descendants: Type.Optional(
          oneOf(['true', 'false'], {
            description:
              '`true`: also every API key and SSH key that was created with it, directly or through other keys',
          }),
        ),
      }),
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const check = (before: ApiKeyRow) => requireMatch(request, etagValue(before));
      await mutate(context, request, reply, REVOKE, async (tx, principal) => {
        if (!isId('ak', id)) throw new AppError('NOT_FOUND');
        const gone =
          request.query.descendants === 'true'
            ? await revokeWithDescendants(context, tx, request, principal, id, check)
            : await revokeApiKey(tx, principal, id, check);
        return { status: 204, body: null, target: id, data: auditData(apiKeyView(gone)) };
      });
      return reply.status(204).send(null);
    },
  });
}

const REVOKE = { action: 'api_key.revoke' };

/** Appends an audit entry for each revoked key except the first, whose entry is that of the mutation. */
async function revokeWithDescendants(
  context: AppContext,
  tx: Tx,
  request: FastifyRequest,
  principal: Principal,
  id: ApiKeyId,
  check: (before: ApiKeyRow) => void,
): Promise<ApiKeyRow> {
  const family = await lockWithDescendants(tx, principal, id, check);
  const [first, ...descendants] = family;
  const ids = family.map((key) => key.id);
  for (const { row, org_ids } of await revokeRegisteredBy(tx, principal, ids)) {
    const entry = {
      action: 'ssh_key.revoke',
      target: row.id,
      data: { name: row.name, fingerprint: row.fingerprint },
    };
    for (const org_id of org_ids) await appendAudit(context, tx, request, org_id, entry);
  }
  await revokeApiKeys(tx, principal, family);
  for (const key of descendants) {
    const entry = { ...REVOKE, target: key.id, data: auditData(apiKeyView(key)) };
    await appendAudit(context, tx, request, principal.org_id, entry);
  }
  return present(first, 'the key itself');
}
