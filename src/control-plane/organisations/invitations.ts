/**
 * Invites an address to an organisation by a mail with a token, and accepts invitations. Only owners and administrators
 * invite. Only the account with the invited address can accept, once.
 */
import { present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { type InvitationId, newId, type OrgId, type UserId } from '../../shared/ids.ts';
import type { Role } from '../../shared/roles.ts';
import type { Tx } from '../db/pool.ts';
import { append, appendPrivate } from '../events/append.ts';
import { type Principal, userOf } from '../identity/principal.ts';
import { findUser, findUserByEmail } from '../identity/store.ts';
import { hashToken, MAIL_PREFIX, newToken, tokenPrefix } from '../identity/tokens.ts';
import type { Mailbox, Post } from '../mail/store.ts';
import { notifyKeyChange } from '../ssh-keys/account-keys.ts';
import { vmsOfUserKeys } from '../ssh-keys/store.ts';
import {
  countInvitations,
  findInvitationByToken,
  findInvitationOf,
  INVITATION_LIFETIME_DAYS,
  type InvitationRow,
  insertInvitation,
  takeInvitation,
} from './invitation-store.ts';
import { findMember, findRole, hasMemberWithEmail, insertMembership } from './member-store.ts';
import { OWNERS_ONLY, presentAdmin } from './members.ts';
import { memberView } from './model.ts';
import { lockOrganisation, type OrganisationRow } from './store.ts';

const MAX_OPEN_INVITATIONS = 1_000;
const DAY_S = 86_400;

export interface Invited {
  readonly row: InvitationRow;
  /** Contains the token. */
  readonly accept_url: string;
}

export interface InvitationContext {
  readonly mailbox: Mailbox;
  readonly public_url: string;
  /** Without it no address can be confirmed. */
  readonly has_smtp: boolean;
}

/**
 * Invites an address by a mail with the token.
 * @throws AppError FORBIDDEN, CONFLICT, QUOTA_EXCEEDED; RATE_LIMITED if the address was invited too often, or the organisation sent too many mails
 */
export async function invite(
  tx: Tx,
  principal: Principal,
  { email, role }: { readonly email: string; readonly role: Role },
  { mailbox, public_url, has_smtp }: InvitationContext,
): Promise<Invited> {
  const { org_id } = principal;
  const organisation = await lockOrganisation(tx, org_id);
  if (!organisation) throw new AppError('NOT_FOUND');
  const own_role = await presentAdmin(tx, principal);
  if (role === 'owner' && own_role !== 'owner') throw new AppError('FORBIDDEN', { message: OWNERS_ONLY });
  if (await hasMemberWithEmail(tx, org_id, email)) {
    throw new AppError('CONFLICT', { message: `${email} is a member already.` });
  }
  const open = await findInvitationOf(tx, org_id, email);
  if (open) {
    throw new AppError('CONFLICT', {
      message: `${email} is invited already (${open.id}, until ${rfc3339(open.expires_at)}). To invite again, delete that invitation first.`,
    });
  }
  if ((await countInvitations(tx, org_id)) >= MAX_OPEN_INVITATIONS) {
    throw new AppError('QUOTA_EXCEEDED', {
      message: `An organisation has at most ${MAX_OPEN_INVITATIONS} open invitations. Revoke one first.`,
    });
  }
  const token = newToken(MAIL_PREFIX);
  const token_hash = hashToken(token);
  const row = await insertInvitation(tx, {
    id: newId('inv'),
    org_id,
    email,
    role,
    token_hash,
    invited_by: userOf(principal),
  });
  const invited = await findUserByEmail(tx, email);
  // An account whose address nobody has confirmed may be somebody else's.
  if (invited && (invited.email_confirmed || !has_smtp)) {
    const { id, name } = organisation;
    await appendPrivate(tx, {
      type: 'org.invited',
      org_id: null,
      user_id: invited.id,
      data: { organisation: { id, name }, role, invitation_id: row.id },
      actor: userOf(principal),
    });
  }
  // After the `#`: browsers do not send this part to a server.
  const accept_url = `${public_url}/invitation#token=${token}`;
  const mail = { ...mailOf(row, organisation, token, accept_url), from: org_id };
  await mailbox.post(tx, mail, INVITATION_LIFETIME_DAYS * DAY_S, token_hash);
  return { row, accept_url };
}

function mailOf(
  { email, role, expires_at }: InvitationRow,
  organisation: OrganisationRow,
  token: string,
  accept_url: string,
): Post {
  return {
    kind: 'invitation',
    to: email,
    subject: `Invitation to ${organisation.name}`,
    text: `You are invited to the organisation ${organisation.name} as ${role}. To join, open this link:

${accept_url}

Or run: berth invitation accept LINK. For POST /v1/invitations/accept, or as invitation_token for POST /v1/auth/register, the token is:

${token}

It works once, until ${rfc3339(expires_at)}, for an account with this address. If you did not expect it, ignore this message.
`,
  };
}

export interface Invitation {
  readonly id: InvitationId;
  readonly org_id: OrgId;
  readonly email: string;
  readonly role: Role;
}

/** The open invitation of a token; undefined for any other text. */
export async function findInvitation(tx: Tx, token: string): Promise<Invitation | undefined> {
  if (tokenPrefix(token) !== MAIL_PREFIX) return undefined;
  return findInvitationByToken(tx, hashToken(token));
}

/** The same for every reason: whoever has no invitation learns of none. */
function notYours(): AppError {
  return new AppError('NOT_FOUND', {
    message: 'This invitation is for another address, was used or withdrawn, or has expired.',
  });
}

/**
 * Consumes an invitation of the account's address and makes the user a member.
 * @throws AppError NOT_FOUND (also for another's invitation), CONFLICT if the user is a member
 */
export async function acceptInvitation(tx: Tx, user_id: UserId, token: string): Promise<OrganisationRow> {
  const invitation = await findInvitation(tx, token);
  const user = await findUser(tx, user_id);
  if (!invitation || !user || user.email_key !== invitation.email.toLowerCase()) {
    throw notYours();
  }
  const { org_id, role } = invitation;
  const organisation = await lockOrganisation(tx, org_id);
  if (!organisation) throw new AppError('NOT_FOUND');
  if ((await findRole(tx, org_id, user_id)) !== undefined) {
    throw new AppError('CONFLICT', { message: 'You are a member of this organisation already.' });
  }
  if (!(await takeInvitation(tx, invitation.id))) throw notYours();
  await insertMembership(tx, org_id, user_id, role);
  const member = present(await findMember(tx, org_id, user_id), 'member just added');
  await append(tx, { org_id, type: 'member.added', data: { member: memberView(member) }, actor: user_id });
  // Instances that the returning user made before may accept the user's keys again.
  await notifyKeyChange(tx, await vmsOfUserKeys(tx, user_id));
  return organisation;
}
