/**
 * Serves `/v1/service-accounts`. A service account holds API keys, and is not a person: it is created, listed and
 * deleted here. Its deletion revokes its keys. Routes of keys are in routes.ts.
 */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { isId, newId, type ServiceAccountId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { Tx } from '../db/pool.ts';
import { principalOf } from '../http/access.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  EmptyBody,
  EXAMPLE_SCOPE,
  idOf,
  NoContent,
  named,
  nameText,
  pageOf,
  pageQuery,
  pathIds,
  Scope,
  Time,
} from '../http/schemas.ts';
import { canonicalScope, refuseEscalation, requireWithinOwn } from '../identity/permissions.ts';
import { actorOf, type Principal, userOf } from '../identity/principal.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { revokeKeysOf } from './change-api-key.ts';
import {
  deleteServiceAccount,
  findServiceAccount,
  insertServiceAccount,
  listServiceAccounts,
  type ServiceAccountRow,
} from './store.ts';

/** Creates a service account with a scope within its creator's own. @throws AppError FORBIDDEN, INVALID_REQUEST */
export async function createServiceAccount(
  tx: Tx,
  principal: Principal,
  { name, scope }: { readonly name: string; readonly scope: string },
): Promise<ServiceAccountRow> {
  requireWithinOwn(principal, scope);
  return insertServiceAccount(tx, {
    id: newId('sa'),
    org_id: principal.org_id,
    name,
    scope: canonicalScope(scope),
    created_by: userOf(principal),
  });
}

/** Deletes a service account and revokes its keys. @throws AppError NOT_FOUND */
async function removeServiceAccount(
  tx: Tx,
  principal: Principal,
  id: ServiceAccountId,
): Promise<ServiceAccountRow> {
  await revokeKeysOf(tx, principal.org_id, { service_account_id: id }, actorOf(principal));
  const gone = await deleteServiceAccount(tx, principal.org_id, id);
  if (!gone) throw new AppError('NOT_FOUND');
  return gone;
}

function serviceAccountView(row: ServiceAccountRow) {
  return { id: row.id, name: row.name, scope: row.scope, created_at: rfc3339(row.created_at) };
}

const ServiceAccount = named('ServiceAccount', {
  id: idOf('sa'),
  name: Type.String({ examples: ['ci'] }),
  scope: Type.String({ description: 'The largest scope that its keys can have', examples: [EXAMPLE_SCOPE] }),
  created_at: Time,
});

const ServiceAccountParams = pathIds({ id: 'the service account' });

const READ = { access: 'api_keys:read', roles: ['owner', 'admin'], people_only: true } as const;
const WRITE = { access: 'api_keys:write', roles: ['owner', 'admin'], people_only: true } as const;

export function registerServiceAccounts(app: App, context: AppContext, cursors: CursorSealer): void {
  registerReads(app, context, cursors);
  registerWrites(app, context);
}

function registerReads(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/service-accounts',
    config: READ,
    schema: {
      operationId: 'listServiceAccounts',
      summary: "List the organisation's service accounts",
      tags: ['Service accounts'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(ServiceAccount) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'service-accounts',
        list: (before, count) => listServiceAccounts(db, principal.org_id, before, count),
        show: serviceAccountView,
      });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/service-accounts/:id',
    config: { ...READ, etag: true },
    schema: {
      operationId: 'getServiceAccount',
      summary: 'Get a service account',
      tags: ['Service accounts'],
      params: ServiceAccountParams,
      response: { 200: ServiceAccount },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const { org_id } = principalOf(request);
      const row = isId('sa', id) ? await findServiceAccount(db, org_id, id) : undefined;
      if (!row) throw new AppError('NOT_FOUND');
      setEtag(reply, row.id);
      return serviceAccountView(row);
    },
  });
}

function registerWrites(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/service-accounts',
    config: { ...WRITE, idempotent: true, etag: true, errors: ['QUOTA_EXCEEDED'] },
    preValidation: async (request: FastifyRequest) => refuseEscalation(principalOf(request), request.body),
    schema: {
      operationId: 'createServiceAccount',
      summary: 'Create a service account: a holder of API keys that is not a person',
      tags: ['Service accounts'],
      body: closed({ name: nameText('ci'), scope: Scope }),
      response: { 201: ServiceAccount },
    },
    handler: async (request, reply) => {
      const mutation = { action: 'service_account.create' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        await checkQuota(tx, context.quotas, principal.org_id, { service_accounts: 1 });
        const row = await createServiceAccount(tx, principal, request.body);
        const data = { name: row.name, scope: row.scope };
        setEtag(reply, row.id);
        return { status: 201, body: serviceAccountView(row), target: row.id, data };
      });
      return reply.status(201).send(body);
    },
  });
  app.route({
    method: 'DELETE',
    url: '/v1/service-accounts/:id',
    config: { ...WRITE, errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'deleteServiceAccount',
      summary: 'Delete a service account; its keys end at once',
      tags: ['Service accounts'],
      params: ServiceAccountParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      await mutate(context, request, reply, { action: 'service_account.delete' }, async (tx, principal) => {
        if (!isId('sa', id)) throw new AppError('NOT_FOUND');
        const gone = await removeServiceAccount(tx, principal, id);
        requireMatch(request, gone.id);
        return { status: 204, body: null, target: id, data: { name: gone.name, scope: gone.scope } };
      });
      return reply.status(204).send(null);
    },
  });
}
