/** Organisations: their names, bills and quotas. Members and invitations have files of their own beside this one. */
import { Type } from 'typebox';
import { actorOf, userOf } from '../../auth/principal.ts';
import { AppError } from '../../lib/errors.ts';
import { ORGANISATION_QUOTAS, type OrganisationQuota } from '../../lib/quotas.ts';
import { changeBillingEmail, renameOrganisation } from '../../orgs/change-organisation.ts';
import { createOrganisation } from '../../orgs/create-organisation.ts';
import { readQuota } from '../../orgs/quotas.ts';
import { findOrganisation, listOrganisations, type OrganisationRow } from '../../orgs/store.ts';
import { organisationView } from '../../orgs/view.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import { appendAudit } from '../append-audit.ts';
import type { AppContext } from '../context.ts';
import { requireMatch, setEtag } from '../etag.ts';
import { mutate } from '../mutate.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import { inPathOrganisation, pathOrganisation } from '../path-organisation.ts';
import type { Places } from '../places.ts';
import {
  COMMON,
  closed,
  Email,
  EmptyBody,
  errors,
  IdParams,
  Name,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  Time,
} from '../schemas.ts';

export const Org = named('Org', {
  id: Type.String(),
  name: Type.String(),
  billing_email: Type.String(),
  created_at: Time,
});
const QuotaOf = named('QuotaUse', {
  limit: nullable(Type.Integer({ description: 'null: unlimited' })),
  source: oneOf(['default', 'set'], { description: 'Whether the operator has set it for this organisation' }),
  used: Type.Integer(),
});
const OrgQuota = named(
  'OrgQuota',
  Object.fromEntries(ORGANISATION_QUOTAS.map((quota) => [quota, QuotaOf])) as Record<
    OrganisationQuota,
    typeof QuotaOf
  >,
);

export function registerOrgs(app: App, context: AppContext, cursors: CursorSealer, places: Places): void {
  registerCollection(app, context, cursors);
  registerReads(app, context, places);
  registerWrites(app, context);
}

/** What can be changed of an organisation. */
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
      summary: 'The organisations that the caller is a member of, those joined last first',
      tags: ['Organisations'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Org), ...errors(...COMMON) },
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
    config: { access: 'session', idempotent: true },
    schema: {
      operationId: 'createOrg',
      summary: 'Make an organisation that the caller owns',
      tags: ['Organisations'],
      body: closed({ name: Name }),
      response: {
        201: Org,
        ...errors(...COMMON, 'QUOTA_EXCEEDED', 'IDEMPOTENCY_IN_PROGRESS', 'IDEMPOTENCY_KEY_REUSED'),
      },
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

function registerReads(app: App, { db, quotas }: AppContext, places: Places): void {
  app.route({
    method: 'GET',
    url: '/v1/orgs/:id',
    config: { access: 'any', organisation: { scope: 'org:read' } },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'getOrg',
      summary: 'One organisation',
      tags: ['Organisations'],
      params: IdParams,
      querystring: EmptyBody,
      response: { 200: Org, ...errors(...COMMON, 'NOT_FOUND') },
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
      summary: 'What an organisation may have, and has',
      description:
        'instances and disk_gib count every instance until its deletion ends; cpus and memory_mib count VMs that are not stopped, suspended or failed; ' +
        'streams counts open event streams, notification streams and consoles.',
      tags: ['Organisations'],
      params: IdParams,
      querystring: EmptyBody,
      response: { 200: OrgQuota, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request) => {
      const org_id = pathOrganisation(request);
      return readQuota(db, quotas, org_id, places.heldBy(org_id));
    },
  });
}

function registerWrites(app: App, context: AppContext): void {
  const { db } = context;
  app.route({
    method: 'PATCH',
    url: '/v1/orgs/:id',
    config: { access: 'any', organisation: { scope: 'org:write', roles: ['owner', 'admin'] } },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'changeOrg',
      summary: 'Rename an organisation',
      tags: ['Organisations'],
      params: IdParams,
      body: closed({ name: Type.Optional(Name) }),
      response: { 200: Org, ...errors(...COMMON, 'NOT_FOUND', 'PRECONDITION_FAILED') },
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
    config: { access: 'session', organisation: { roles: ['owner', 'admin', 'billing'] }, sudo: true },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'changeBillingEmail',
      summary: 'Change where the bills go; the address before and the new one are told',
      tags: ['Organisations'],
      params: IdParams,
      body: closed({ email: Email }),
      response: { 200: Org, ...errors(...COMMON, 'SUDO_REQUIRED', 'NOT_FOUND', 'PRECONDITION_FAILED') },
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
