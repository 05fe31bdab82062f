/**
 * Routes that list, create, show and rename organisations, change their billing addresses, and show their quotas.
 * Routes of members and invitations are in member-routes.ts and invitation-routes.ts.
 */
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { ORGANISATION_QUOTAS, type OrganisationQuota } from '../../shared/quotas.ts';
import type { AppContext } from '../context.ts';
import { inPathOrganisation, pathOrganisation, principalOf } from '../http/access.ts';
import { type App, appendAudit, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  Email,
  idOf,
  named,
  nameText,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import { actorOf, userOf } from '../identity/principal.ts';
import { changeBillingEmail, createOrganisation, renameOrganisation } from './change-organisation.ts';
import { organisationView } from './model.ts';
import { readQuota } from './quotas.ts';
import { findOrganisation, listOrganisations, type OrganisationRow } from './store.ts';

const EXAMPLE_NAME = 'Analytical Engines';
export const Org = named('Org', {
  id: idOf('org'),
  name: Type.String({ examples: [EXAMPLE_NAME] }),
  billing_email: Type.String({ examples: ['bills@example.org'] }),
  created_at: Time,
  operator: Type.Boolean({
    description: 'Its owners and admins see the whole installation (`GET /v1/operator`)',
    examples: [false],
  }),
});
const QuotaOf = named('QuotaUse', {
  limit: nullable(Type.Integer({ description: 'null: unlimited', examples: [20] })),
  source: oneOf(['default', 'set'], { description: '`set`: the operator has set it for this organisation' }),
  used: Type.Integer({ examples: [3] }),
});
export const OrgQuota = named(
  'OrgQuota',
  Object.fromEntries(ORGANISATION_QUOTAS.map((quota) => [quota, QuotaOf])) as Record<
    OrganisationQuota,
    typeof QuotaOf
  >,
);

const OrgParams = pathIds({ id: 'the organisation' });

export function registerOrgs(app: App, context: AppContext, cursors: CursorSealer): void {
  registerCollection(app, context, cursors);
  registerReads(app, context);
  registerWrites(app, context);
}

/** The fields that a PATCH may change; the ETag depends on them. */
function etagValue({ id, name, billing_email }: OrganisationRow) {
  return { id, name, billing_email };
}

function registerCollection(app: App, context: AppContext, cursors: CursorSealer): void {
  const { db } = context;
  app.route({
    method: 'GET',
    url: '/v1/orgs',
    config: { access: 'session' },
    schema: {
      operationId: 'listOrgs',
      summary: 'List the organisations of the caller, the last joined first',
      tags: ['Organisations'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Org) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'orgs by joining',
        list: async (before: string | null, count: number) => {
          const rows = await listOrganisations(db, userOf(principal), before, count);
          return rows.map((row) => ({ id: row.position, row }));
        },
        show: ({ row }) => organisationView(row),
      });
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/orgs',
    config: { access: 'session', idempotent: true, etag: true, errors: ['QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'createOrg',
      summary: 'Create an organisation that the caller owns',
      tags: ['Organisations'],
      body: closed({ name: nameText(EXAMPLE_NAME) }),
      response: { 201: Org },
    },
    handler: async (request, reply) => {
      const mutation = { action: 'org.create' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await createOrganisation(tx, context.quotas, userOf(principal), request.body.name);
        await appendAudit(context, tx, request, row.id, {
          ...mutation,
          target: row.id,
          data: { name: row.name },
        });
        setEtag(reply, etagValue(row));
        return { status: 201, body: organisationView(row), target: row.id, unchanged: true };
      });
      return reply.status(201).send(body);
    },
  });
}

function registerReads(app: App, { db, quotas }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/orgs/:id',
    config: { access: 'any', organisation: { scope: 'org:read' }, etag: true },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'getOrg',
      summary: 'Get an organisation',
      tags: ['Organisations'],
      params: OrgParams,
      response: { 200: Org },
    },
    handler: async (request, reply) => {
      const row = await findOrganisation(db, pathOrganisation(request));
      if (!row) throw new AppError('NOT_FOUND');
      setEtag(reply, etagValue(row));
      return organisationView(row);
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/orgs/:id/quota',
    config: { access: 'any', organisation: { scope: 'org:read' } },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'getOrgQuota',
      summary: 'Get the quotas of an organisation and their use',
      description:
        '`instances` and `disk_gib` count every instance until its deletion ends; `cpus` and `memory_mib` count VMs that are not stopped, suspended or failed; `streams` counts open event streams, notification streams and consoles.',
      tags: ['Organisations'],
      params: OrgParams,
      response: { 200: OrgQuota },
    },
    handler: async (request) => {
      const org_id = pathOrganisation(request);
      return readQuota(db, quotas, org_id);
    },
  });
}

function registerWrites(app: App, context: AppContext): void {
  const { db } = context;
  app.route({
    method: 'PATCH',
    url: '/v1/orgs/:id',
    config: {
      access: 'any',
      organisation: { scope: 'org:write', roles: ['owner', 'admin'] },
      etag: true,
      errors: ['PRECONDITION_FAILED'],
    },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'changeOrg',
      summary: 'Rename an organisation',
      tags: ['Organisations'],
      params: OrgParams,
      body: closed({ name: Type.Optional(nameText(EXAMPLE_NAME)) }),
      response: { 200: Org },
    },
    handler: async (request, reply) => {
      const id = pathOrganisation(request);
      const { name } = request.body;
      const { body } = await mutate(context, request, reply, { action: 'org.change' }, async (tx) => {
        const check = (before: OrganisationRow) => requireMatch(request, etagValue(before));
        const { row, unchanged } = await renameOrganisation(tx, id, name, check);
        setEtag(reply, etagValue(row));
        return { status: 200, body: organisationView(row), target: id, data: { name }, unchanged };
      });
      return body;
    },
  });
  app.route({
    method: 'PUT',
    url: '/v1/orgs/:id/billing-email',
    config: {
      access: 'session',
      organisation: { roles: ['owner', 'admin', 'billing'] },
      sudo: true,
      etag: true,
      errors: ['PRECONDITION_FAILED'],
    },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'changeBillingEmail',
      summary: 'Change the billing address; the old and the new address get a mail',
      tags: ['Organisations'],
      params: OrgParams,
      body: closed({ email: Email }),
      response: { 200: Org },
    },
    handler: async (request, reply) => {
      const id = pathOrganisation(request);
      const { email } = request.body;
      const mutation = { action: 'org.change_billing_email' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const check = (before: OrganisationRow) => requireMatch(request, etagValue(before));
        const changed = await changeBillingEmail(tx, id, email, actorOf(principal), context.mailbox, check);
        const data = { previous: changed.previous, billing_email: email };
        setEtag(reply, etagValue(changed.row));
        const unchanged = changed.previous === email;
        return { status: 200, body: organisationView(changed.row), target: id, data, unchanged };
      });
      return body;
    },
  });
}
