import { Type } from 'typebox';
import { userOf } from '../../auth/principal.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { AppError } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { deleteInvitation, listInvitations } from '../../orgs/invitation-store.ts';
import { acceptInvitation, invite } from '../../orgs/invitations.ts';
import { invitationView, organisationView } from '../../orgs/view.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import { appendAudit } from '../append-audit.ts';
import type { AppContext } from '../context.ts';
import { mutate } from '../mutate.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import { inPathOrganisation, pathOrganisation } from '../path-organisation.ts';
import {
  COMMON,
  closed,
  Email,
  EmptyBody,
  errors,
  IdParams,
  NoContent,
  named,
  pageOf,
  pageQuery,
  Time,
} from '../schemas.ts';
import { RoleSchema, refuseMakingOwners } from './members.ts';
import { Org } from './orgs.ts';

const SHOWN = { id: Type.String(), email: Type.String(), role: RoleSchema, expires_at: Time };
const ListedInvitation = named('ListedInvitation', { ...SHOWN, invited_by: Type.String(), created_at: Time });
const Invitation = named('Invitation', {
  ...SHOWN,
  accept_url: Type.Optional(
    Type.String({
      description:
        'With the token, for the inviter to pass on; only where the server sends no mail, and shown this once',
    }),
  ),
});
const InvitationParams = Type.Object({ id: Type.String(), invitation_id: Type.String() });
const ADMINS = { access: 'session', organisation: { roles: ['owner', 'admin'] } } as const;

export function registerInvitations(app: App, context: AppContext, cursors: CursorSealer): void {
  registerInvite(app, context);
  registerList(app, context, cursors);
  registerWithdrawal(app, context);
  registerAccept(app, context);
}

function registerInvite(app: App, context: AppContext): void {
  const { mailbox, public_url, has_smtp } = context;
  app.route({
    method: 'POST',
    url: '/v1/orgs/:id/invitations',
    // Nobody mails strangers, or lets others in, from an address that may be somebody else's.
    config: { ...ADMINS, idempotent: true, confirmed_address: true },
    onRequest: inPathOrganisation(context.db),
    preValidation: refuseMakingOwners,
    schema: {
      operationId: 'createInvitation',
      summary: 'Invite an address; the token goes there by mail, is good for 7 days and works once',
      tags: ['Organisations'],
      params: IdParams,
      body: closed({ email: Email, role: RoleSchema }),
      response: {
        201: Invitation,
        ...errors(
          ...COMMON,
          'NOT_FOUND',
          'CONFLICT',
          'QUOTA_EXCEEDED',
          'IDEMPOTENCY_IN_PROGRESS',
          'IDEMPOTENCY_KEY_REUSED',
        ),
      },
    },
    handler: async (request, reply) => {
      pathOrganisation(request);
      const mutation = { action: 'invitation.create' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const { row, accept_url } = await invite(tx, principal, request.body, mailbox, public_url);
        const { id, email, role } = row;
        // Nobody else would ever see it. By SMTP the token is what proves the address.
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
      summary: 'The invitations that can still be accepted',
      tags: ['Organisations'],
      params: IdParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(ListedInvitation), ...errors(...COMMON, 'NOT_FOUND') },
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
      response: { 204: NoContent, ...errors(...COMMON, 'NOT_FOUND') },
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
    config: { access: 'session', confirmed_address: true },
    schema: {
      operationId: 'acceptInvitation',
      summary: "Join an organisation by an invitation of the account's address",
      tags: ['Organisations'],
      body: closed({ token: Type.String({ minLength: 1, maxLength: 200 }) }),
      response: { 200: Org, ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT') },
    },
    handler: async (request, reply) => {
      const action = 'invitation.accept';
      const { body } = await mutate(context, request, reply, { action }, async (tx, principal) => {
        const user_id = userOf(principal);
        const organisation = await acceptInvitation(tx, user_id, request.body.token);
        // Into the log of the organisation that was joined.
        await appendAudit(context, tx, request, organisation.id, { action, target: user_id });
        return { status: 200, body: organisationView(organisation), target: user_id, unchanged: true };
      });
      return body;
    },
  });
}
