/**
 * Holds the current organisation, the user's other organisations, and the user's role in the current one. The role here
 * only hides actions that the server would refuse: the server decides.
 */
import { signal } from '@preact/signals';
import type { Org } from '../../../client/src/berth.ts';
import type { Member } from '../../../client/src/generated.ts';
import { berth, org_id } from '../api.ts';
import { writeChoice } from '../choices.ts';
import { user } from '../session.ts';

export const orgs = signal<readonly Org[]>([]);
export const org = signal<Org | null>(null);
export const role = signal<Member['role'] | null>(null);

/** Roles as in docs/permissions.md. The server decides; this only hides actions that it would refuse. */
export const leads = () => role.value === 'owner' || role.value === 'admin';
/** Whether the user may see the whole installation. */
export const operates = () => leads() && org.value?.operator === true;
export const works = () => role.value !== null && role.value !== 'billing';

/** Why the user cannot change instances; undefined: they can. */
export const whyNoWork = () =>
  works() ? undefined : `Your role here, ${role.value ?? 'none'}, cannot change instances.`;
/** Why the user cannot change the organisation; undefined: they can. */
export const whyNoLead = () =>
  leads() ? undefined : `Only owners and admins can do this. Your role here is ${role.value ?? 'none'}.`;

/** Counts changes of the organisation. Each change renders the whole page again. */
export const switches = signal(0);

export function chooseOrganisation(id: string | null): void {
  org_id.value = id;
  org.value = null;
  writeChoice('org', id);
  switches.value += 1;
}

export async function loadMembership(stop?: AbortSignal): Promise<void> {
  const me = user.value;
  if (!me) return;
  const found: Org[] = [];
  for await (const each of berth.list('listOrgs', {})) found.push(each);
  if (stop?.aborted) return;
  orgs.value = found;
  const chosen = found.find(({ id }) => id === org_id.value);
  // The list ends with the organisation that the account joined first, which is also the server's default.
  const current = chosen ?? found.at(-1) ?? null;
  org_id.value = current?.id ?? null;
  const member = current && (await berth.call('getMember', { path: { id: current.id, user_id: me.id } }));
  if (stop?.aborted) return;
  role.value = member?.role ?? null;
  org.value = current;
}

/** Clears the data of the logged-out user. */
export function leaveMembership(): void {
  orgs.value = [];
  role.value = null;
}
