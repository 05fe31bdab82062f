import { type Static, Type } from 'typebox';
import { createApiKey, revokeApiKey } from '../../api-keys/create-api-key.ts';
import { findApiKey, listApiKeys } from '../../api-keys/store.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { AppError } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { type CursorSealer, page } from '../pagination.ts';
import { readLimit } from '../query.ts';
import {
  COMMON,
  closed,
  EmptyBody,
  errors,
  InstanceParams,
  Name,
  NoContent,
  nullable,
  pageOf,
  pageQuery,
  Scope,
  Time,
} from '../schemas.ts';

const SHOWN = {
  id: Type.String(),
  name: Type.String(),
  scope: Type.String(),
  prefix: Type.String(),
  last4: Type.String(),
  created_at: Time,
  last_used_at: nullable(Time),
  expires_at: nullable(Time),
};
const ApiKey = closed(SHOWN);
const CreateApiKeyRequest = closed({
  name: Name,
  scope: Scope,
  expires_in_seconds: Type.Optional(Type.Integer({ minimum: 60, maximum: 10 * 365 * 86_400 })),
});
const CreateApiKeyResponse = closed({
  ...SHOWN,
  key: Type.String({ description: 'The plain key, shown this once' }),
});

type ApiKeyRow = Awaited<ReturnType<typeof listApiKeys>>[number];

function apiKeyView(row: ApiKeyRow): Static<typeof ApiKey> {
  const time = (value: Date | null) => (value === null ? null : rfc3339(value));
  return {
    id: row.id,
    name: row.name,
    scope: row.scope,
    prefix: row.prefix,
    last4: row.last4,
    created_at: rfc3339(row.created_at),
    last_used_at: time(row.last_used_at),
    expires_at: time(row.expires_at),
  };
}

export function registerApiKeys(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'POST',
    url: '/v1/api-keys',
    config: { access: 'api_keys:write' },
    schema: {
      operationId: 'createApiKey',
      summary: 'Make an API key',
      tags: ['API keys'],
      body: CreateApiKeyRequest,
      response: { 201: CreateApiKeyResponse, ...errors(...COMMON) },
    },
    handler: async (request, reply) => {
      const made = await createApiKey(db, principalOf(request), request.body);
      reply.header('cache-control', 'no-store');
      return reply.status(201).send({ ...apiKeyView(made), key: made.key });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/api-keys',
    config: { access: 'api_keys:read' },
    schema: {
      operationId: 'listApiKeys',
      summary: "The caller's API keys",
      tags: ['API keys'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(ApiKey), ...errors(...COMMON) },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const limit = readLimit(request.query.limit, 200);
      const scope = { route: 'api-keys', principal, filter: {} };
      const before = request.query.cursor === undefined ? null : cursors.open(scope, request.query.cursor);
      return page(cursors, scope, await listApiKeys(db, principal, before, limit + 1), limit, apiKeyView);
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
      params: InstanceParams,
      querystring: EmptyBody,
      response: { 200: ApiKey, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request) => {
      const { id } = request.params;
      const row = isId('ak', id) ? await findApiKey(db, principalOf(request), id) : undefined;
      if (!row) throw new AppError('NOT_FOUND');
      return apiKeyView(row);
    },
  });
  app.route({
    method: 'DELETE',
    url: '/v1/api-keys/:id',
    config: { access: 'api_keys:write' },
    schema: {
      operationId: 'revokeApiKey',
      summary: 'Revoke an API key',
      tags: ['API keys'],
      params: InstanceParams,
      body: EmptyBody,
      response: { 204: NoContent, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request, reply) => {
      if (!isId('ak', request.params.id)) throw new AppError('NOT_FOUND');
      await revokeApiKey(db, principalOf(request), request.params.id);
      return reply.status(204).send(null);
    },
  });
}
