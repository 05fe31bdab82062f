/**
 * The rules about owners, asked with the organisation held: only owners make and unmake owners, and an organisation
 * that somebody or something depends on never loses its last.
 */
import { type Principal, userOf } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import type { Role } from '../db/tables.ts';
import { AppError } from '../lib/errors.ts';
import type { OrgId } from '../lib/ids.ts';
import { countMembers, findRole } from './member-store.ts';
import { countInstances } from './store.ts';

export const OWNERS_ONLY = 'Only an owner makes or unmakes owners.';

/**
 * The role that the caller has now that the organisation is held: what the request came with may have ended.
 * @throws AppError FORBIDDEN
 */
export async function presentRole(tx: Tx, principal: Principal): Promise<Role> {
  const role = await findRole(tx, principal.org_id, userOf(principal));
  if (role === undefined) {
    throw new AppError('FORBIDDEN', { message: 'You are no longer a member of the organisation.' });
  }
  return role;
}

/** As {@link presentRole}, of an owner or administrator. @throws AppError FORBIDDEN */
export async function presentAdmin(tx: Tx, principal: Principal): Promise<'owner' | 'admin'> {
  const role = await presentRole(tx, principal);
  if (role !== 'owner' && role !== 'admin') throw new AppError('FORBIDDEN');
  return role;
}

/** Of an owner: whether there is no other. */
export async function isLastOwner(tx: Tx, org_id: OrgId): Promise<boolean> {
  return (await countMembers(tx, org_id)).owners <= 1;
}

/** Whether anybody but its last owner, or any instance, is in the organisation. */
export async function isInUse(tx: Tx, org_id: OrgId): Promise<boolean> {
  return (await countMembers(tx, org_id)).members > 1 || (await countInstances(tx, org_id)) > 0;
}

/** `what` the last owner cannot: `leave`, `be demoted`, … */
export function lastOwnerStays(what: string, name?: string): AppError {
  const of = name === undefined ? 'the organisation' : `the organisation "${name}"`;
  // Without an owner there is nobody to make one, so a demotion is refused even where leaving would be allowed.
  const or = what === 'be demoted' ? '' : ', or remove its other members and delete its instances';
  return new AppError('CONFLICT', {
    message: `The last owner of ${of} cannot ${what}. Make another member owner first${or}.`,
  });
}
