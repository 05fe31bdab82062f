/** Routes that list, show and remove the members of an organisation, and that change their roles. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { isId, type UserId } from '../../shared/ids.ts';
import { ROLES } from '../../shared/roles.ts';
import type { AppContext } from '../context.ts';
import { inPathOrganisation, pathOrganisation, peek, principalOf } from '../http/access.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  Email,
  EmptyBody,
  idOf,
  NoContent,
  named,
  pageOf,
  pageQuery,
  pathIds,
} from '../http/schemas.ts';
import { isAdmin, type Principal, userOf } from '../identity/principal.ts';
import { findMember, listMembers, type MemberRow } from './member-store.ts';
import { changeRole, OWNERS_ONLY, removeMember } from './members.ts';
import { memberView } from './model.ts';

export const RoleSchema = Type.Unsafe<(typeof ROLES)[number]>({
  type: 'string',
  enum: [...ROLES],
  examples: ['member'],
});
const Member = named('Member', {
  id: idOf('usr', { description: 'The id of the user' }),
  email: Email,
  name: Type.String({ examples: ['Ada Lovelace'] }),
  role: RoleSchema,
  by_groups: Type.Boolean({
    description: 'Groups at the OpenID provider give the role, and take it; it cannot be changed here',
  }),
  created_at: Type.String({ format: 'date-time', description: 'When the user joined' }),
});
const OrgParams = pathIds({ id: 'the organisation' });
const MemberParams = pathIds({ id: 'the organisation', user_id: 'the member' });
const ADMINS = { access: 'session', organisation: { roles: ['owner', 'admin'] } } as const;

export function registerMembers(app: App, context: AppContext, cursors: CursorSealer): void {
  registerReads(app, context, cursors);
  registerChange(app, context);
  registerRemoval(app, context);
}

/** The member of a path. @throws AppError NOT_FOUND also where the id is malformed */
function memberId(params: { user_id: string }): UserId {
  if (!isId('usr', params.user_id)) throw new AppError('NOT_FOUND');
  return params.user_id;
}

/** The fields of a membership that a change can change. */
function etagValue({ user_id, role }: MemberRow) {
  return { user_id, role };
}

function isItself(request: FastifyRequest, principal: Principal): boolean {
  return userOf(principal) === (request.params as { user_id: string }).user_id;
}

/** Only owners make owners. Checked before the body is validated. @throws AppError FORBIDDEN */
export async function refuseMakingOwners(request: FastifyRequest): Promise<void> {
  const { org_id, role } = principalOf(request);
  const here = org_id === (request.params as { id: string }).id;
  if (here && role !== 'owner' && peek(request.body, 'role') === 'owner') {
    throw new AppError('FORBIDDEN', { message: OWNERS_ONLY });
  }
}

/** A change by hand would be undone by the next check. @throws AppError CONFLICT */
function refuseOfGroups({ oidc }: AppContext, { by_groups }: MemberRow): void {
  if (!by_groups || oidc === null) return;
  throw new AppError('CONFLICT', {
    message: `The role comes from a group at ${oidc.provider.name}. Change the person's groups there.`,
  });
}

function registerReads(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/orgs/:id/members',
    config: ADMINS,
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'listMembers',
      summary: 'List the members of an organisation, the newest first',
      tags: ['Organisations'],
      params: OrgParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Member) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'members',
        of: { organisation: request.params.id },
        list: (before, count) => listMembers(db, pathOrganisation(request), before, count),
        show: memberView,
      });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/orgs/:id/members/:user_id',
    config: { access: 'session', organisation: {}, etag: true },
    onRequest: [inPathOrganisation(db), requireAdminOrItself],
    schema: {
      operationId: 'getMember',
      summary: 'Get a member; any member may get their own membership',
      tags: ['Organisations'],
      params: MemberParams,
      response: { 200: Member },
    },
    handler: async (request, reply) => {
      const row = await findMember(db, pathOrganisation(request), memberId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      setEtag(reply, etagValue(row));
      return memberView(row);
    },
  });
}

function registerChange(app: App, context: AppContext): void {
  app.route({
    method: 'PATCH',
    url: '/v1/orgs/:id/members/:user_id',
    config: { ...ADMINS, etag: true, errors: ['CONFLICT', 'PRECONDITION_FAILED'] },
    onRequest: inPathOrganisation(context.db),
    preValidation: refuseMakingOwners,
    schema: {
      operationId: 'changeMember',
      summary: 'Change the role of a member; only owners make and unmake owners',
      tags: ['Organisations'],
      params: MemberParams,
      body: closed({ role: RoleSchema }),
      response: { 200: Member },
    },
    handler: async (request, reply) => {
      pathOrganisation(request);
      const user_id = memberId(request.params);
      const { role } = request.body;
      const mutation = { action: 'member.change_role' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const check = (before: MemberRow) => {
          refuseOfGroups(context, before);
          requireMatch(request, etagValue(before));
        };
        const { member, previous_role } = await changeRole(tx, principal, user_id, role, check);
        const unchanged = previous_role === role;
        setEtag(reply, etagValue(member));
        return {
          status: 200,
          body: memberView(member),
          target: user_id,
          data: { role, previous_role },
          unchanged,
        };
      });
      return body;
    },
  });
}

/** @throws AppError FORBIDDEN */
async function requireAdminOrItself(request: FastifyRequest): Promise<void> {
  const principal = principalOf(request);
  const here = principal.org_id === (request.params as { id: string }).id;
  if (here && !isAdmin(principal) && !isItself(request, principal)) {
    throw new AppError('FORBIDDEN', { message: 'This needs the role owner or admin in the organisation.' });
  }
}

function registerRemoval(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/orgs/:id/members/:user_id',
    config: { access: 'session', organisation: {}, errors: ['CONFLICT', 'PRECONDITION_FAILED'] },
    onRequest: [inPathOrganisation(context.db), requireAdminOrItself],
    schema: {
      operationId: 'removeMember',
      summary: 'Remove a member, or leave the organisation',
      description:
        "The member's API keys of the organisation end at once, and the member's SSH keys can no longer log in to its instances. When the last owner leaves an organisation that has no other members and no instances, the organisation is deleted.",
      tags: ['Organisations'],
      params: MemberParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      pathOrganisation(request);
      const user_id = memberId(request.params);
      await mutate(context, request, reply, { action: 'member.remove' }, async (tx, principal) => {
        const check = (before: MemberRow) => requireMatch(request, etagValue(before));
        const gone = await removeMember(tx, context.quotas, principal, user_id, check);
        return { status: 204, body: null, target: user_id, data: { email: gone.email, role: gone.role } };
      });
      return reply.status(204).send(null);
    },
  });
}
