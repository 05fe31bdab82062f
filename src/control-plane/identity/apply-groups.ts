/** Applies what the provider says about a person's groups, and audits what changes. */

import type { UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { followGroups, type GroupChange } from '../organisations/follow-groups.ts';
import { type Claimed, wantedRoles } from './oidc/claims.ts';
import type { OidcContext } from './oidc-context.ts';

const ACTIONS: Record<GroupChange['change'], string> = {
  added: 'member.add_by_group',
  changed: 'member.change_role_by_group',
  removed: 'member.remove_by_group',
  last_owner_kept: 'member.keep_last_owner',
};

/** `from`: of the request; null: a check in the background. */
export async function applyGroups(
  tx: Tx,
  { audit, quotas, signups, provider }: Pick<OidcContext, 'audit' | 'quotas' | 'signups' | 'provider'>,
  user_id: UserId,
  { groups }: Pick<Claimed, 'groups'>,
  from: { readonly ip: string; readonly request_id: string } | null,
): Promise<GroupChange[]> {
  // Unknown groups change nothing, and an account without any organisation gets an empty one.
  const mapping = groups === null ? null : wantedRoles(provider.settings.groups, groups);
  // While sign-ups are closed, a person without a group gets an organisation in which nothing can be created.
  const own = signups === 'open' ? quotas : { ...quotas, organisations: 0 };
  const changes = await followGroups(tx, own, user_id, mapping);
  for (const { org_id, change, role, previous_role } of changes) {
    await audit.append(tx, org_id, {
      actor: 'system',
      action: ACTIONS[change],
      target: user_id,
      ip: from?.ip ?? null,
      request_id: from?.request_id ?? null,
      data: { role, ...(previous_role === undefined ? {} : { previous_role }), provider: provider.name },
    });
  }
  return changes;
}
