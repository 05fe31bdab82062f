/**
 * The rules about owners, checked while the organisation is locked: only owners appoint and demote owners, and an
 * organisation with other members or instances keeps its last owner.
 */

import { AppError } from '../../shared/errors.ts';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Role } from '../db/tables.ts';
import { type Principal, userOf } from '../identity/principal.ts';
import { countMembers, findRole } from './member-store.ts';
import { countInstances } from './store.ts';

export const OWNERS_ONLY = 'Only an owner makes or unmakes owners.';

/**
 * The caller's role while the organisation is locked; it may have changed since the request was authenticated.
 * @throws AppError FORBIDDEN
 */
export async function presentRole(tx: Tx, principal: Principal): Promise<Role> {
  const role = await findRole(tx, principal.org_id, userOf(principal));
  if (role === undefined) {
    throw new AppError('FORBIDDEN', { message: 'You are no longer a member of the organisation.' });
  }
  return role;
}

/** As {@link presentRole}, for owners and administrators. @throws AppError FORBIDDEN */
export async function presentAdmin(tx: Tx, principal: Principal): Promise<'owner' | 'admin'> {
  const role = await presentRole(tx, principal);
  if (role !== 'owner' && role !== 'admin') throw new AppError('FORBIDDEN');
  return role;
}

/** Whether this owner is the only one. */
export async function isLastOwner(tx: Tx, org_id: OrgId): Promise<boolean> {
  return (await countMembers(tx, org_id)).owners <= 1;
}

/** Whether the organisation has another member or an instance. */
export async function isInUse(tx: Tx, org_id: OrgId): Promise<boolean> {
  return (await countMembers(tx, org_id)).members > 1 || (await countInstances(tx, org_id)) > 0;
}

/** `what`: the forbidden action, `leave`, `be demoted`, … */
export function lastOwnerStays(what: string, name?: string): AppError {
  const of = name === undefined ? 'the organisation' : `the organisation "${name}"`;
  // Only an owner can appoint one, so a demotion is rejected even where leaving would be allowed.
  const or = what === 'be demoted' ? '' : ', or remove its other members and delete its instances';
  return new AppError('CONFLICT', {
    message: `The last owner of ${of} cannot ${what}. Make another member owner first${or}.`,
  });
}
