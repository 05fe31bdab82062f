/** Converts rows of organisations, members and invitations to the form in which the API shows them. */
import { rfc3339 } from '../../shared/clock.ts';
import type { InvitationRow } from './invitation-store.ts';
import type { MemberRow } from './member-store.ts';
import type { OrganisationRow } from './store.ts';

export function organisationView(row: OrganisationRow) {
  return {
    id: row.id,
    name: row.name,
    billing_email: row.billing_email,
    created_at: rfc3339(row.created_at),
    operator: row.operator,
  };
}

/** `id` is the user's. */
export function memberView(row: MemberRow) {
  return {
    id: row.user_id,
    email: row.email,
    name: row.name,
    role: row.role,
    by_groups: row.by_groups,
    created_at: rfc3339(row.created_at),
  };
}

export function invitationView(row: InvitationRow) {
  return { id: row.id, email: row.email, role: row.role, expires_at: rfc3339(row.expires_at) };
}
