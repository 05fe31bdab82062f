/** Routes that create, list, withdraw and accept invitations to an organisation. */
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { inPathOrganisation, pathOrganisation, principalOf } from '../http/access.ts';
import { type App, appendAudit, mutate } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  Email,
  EmptyBody,
  idOf,
  MailToken,
  NoContent,
  named,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import { userOf } from '../identity/principal.ts';
import { deleteInvitation, listInvitations } from './invitation-store.ts';
import { acceptInvitation, invite } from './invitations.ts';
import { RoleSchema, refuseMakingOwners } from './member-routes.ts';
import { invitationView, organisationView } from './model.ts';
import { Org } from './routes.ts';

const SHOWN = { id: idOf('inv'), email: Email, role: RoleSchema, expires_at: Time };
const ListedInvitation = named('ListedInvitation', { ...SHOWN, invited_by: idOf('usr'), created_at: Time });
const Invitation = named('Invitation', {
  ...SHOWN,
  accept_url: Type.Optional(
    Type.String({
      description:
        'The link with the token, for the inviter to pass on; present only where the server sends no mail, and shown only once. It begins with BERTH_PUBLIC_URL, by default an address that only the server itself reaches',
      examples: [
        'https://berth.example.org/invitation#token=berth_mail_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti',
      ],
    }),
  ),
});
const OrgParams = pathIds({ id: 'the organisation' });
const InvitationParams = pathIds({ id: 'the organisation', invitation_id: 'the invitation' });
const ADMINS = { access: 'session', organisation: { roles: ['owner', 'admin'] } } as const;

export function registerInvitations(app: App, context: AppContext, cursors: CursorSealer): void {
  registerInvite(app, context);
  registerList(app, context, cursors);
  registerWithdrawal(app, context);
  registerAccept(app, context);
}

function registerInvite(app: App, context: AppContext): void {
  const { has_smtp } = context;
  app.route({
    method: 'POST',
    url: '/v1/orgs/:id/invitations',
    // An unconfirmed address may belong to somebody else, who must not appear to invite people.
    config: { ...ADMINS, idempotent: true, confirmed_address: true, errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    onRequest: inPathOrganisation(context.db),
    preValidation: refuseMakingOwners,
    schema: {
      operationId: 'createInvitation',
      summary: 'Invite an address; the mailed token works once, within 7 days',
      tags: ['Organisations'],
      params: OrgParams,
      body: closed({ email: Email, role: RoleSchema }),
      response: { 201: Invitation },
    },
    handler: async (request, reply) => {
      pathOrganisation(request);
      const mutation = { action: 'invitation.create' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const { row, accept_url } = await invite(tx, principal, request.body, context);
        const { id, email, role } = row;
        // With SMTP the token proves the address, so the inviter must not see it.
        const body = { ...invitationView(row), ...(has_smtp ? {} : { accept_url }) };
        return { status: 201, body, target: id, data: { email, role } };
      });
      reply.header('cache-control', 'no-store');
      return reply.status(201).send(body);
    },
  });
}

function registerList(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/orgs/:id/invitations',
    config: ADMINS,
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'listInvitations',
      summary: 'List the invitations that are open',
      tags: ['Organisations'],
      params: OrgParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(ListedInvitation) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'invitations',
        of: { organisation: request.params.id },
        list: (before, count) => listInvitations(db, pathOrganisation(request), before, count),
        show: (row) => ({
          ...invitationView(row),
          invited_by: row.invited_by,
          created_at: rfc3339(row.created_at),
        }),
      });
    },
  });
}

function registerWithdrawal(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/orgs/:id/invitations/:invitation_id',
    config: ADMINS,
    onRequest: inPathOrganisation(context.db),
    schema: {
      operationId: 'deleteInvitation',
      summary: 'Withdraw an invitation',
      tags: ['Organisations'],
      params: InvitationParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const org_id = pathOrganisation(request);
      const { invitation_id } = request.params;
      await mutate(context, request, reply, { action: 'invitation.delete' }, async (tx) => {
        const gone = isId('inv', invitation_id)
          ? await deleteInvitation(tx, org_id, invitation_id)
          : undefined;
        if (!gone) throw new AppError('NOT_FOUND');
        const data = { email: gone.email, role: gone.role };
        return { status: 204, body: null, target: gone.id, data };
      });
      return reply.status(204).send(null);
    },
  });
}

function registerAccept(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/invitations/accept',
    config: { access: 'session', confirmed_address: true, errors: ['NOT_FOUND', 'CONFLICT'] },
    schema: {
      operationId: 'acceptInvitation',
      summary: "Accept an invitation to the account's address, and join its organisation",
      tags: ['Organisations'],
      body: closed({ token: MailToken }),
      response: { 200: Org },
    },
    handler: async (request, reply) => {
      const action = 'invitation.accept';
      const { body } = await mutate(context, request, reply, { action }, async (tx, principal) => {
        const user_id = userOf(principal);
        const organisation = await acceptInvitation(tx, user_id, request.body.token);
        // In the audit log of the joined organisation.
        await appendAudit(context, tx, request, organisation.id, { action, target: user_id });
        return { status: 200, body: organisationView(organisation), target: user_id, unchanged: true };
      });
      return body;
    },
  });
}
