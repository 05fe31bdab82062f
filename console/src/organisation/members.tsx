/** The organisation's members and their roles. */
import type { Member } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { attempt } from '../attempt.ts';
import { instances } from '../live/instances.ts';
import { chooseOrganisation, loadMembership, org, role } from '../live/membership.ts';
import { user } from '../session.ts';
import { settings } from '../settings.ts';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';
import { RoleOptions } from './role-options.tsx';
import type { Role } from './roles.ts';

export function Members() {
  const id = org.value?.id ?? '';
  const list = useList(`members ${id}`, (query) => call('listMembers', { path: { id }, query }));
  const change = async (member: Member, next: Role) => {
    await attempt(async () => {
      await call('changeMember', { path: { id, user_id: member.id }, body: { role: next } });
      if (member.id === user.value?.id) await loadMembership();
    });
    await list.reload();
  };
  const isMe = (member: Member) => member.id === user.value?.id;
  const fixedOf = (member: Member) =>
    fixed(member, { members: list.data ?? [], are_all: list.more === undefined });
  return (
    <Section title="Members">
      <ListTable
        list={list}
        empty={null}
        columns={[
          {
            head: 'Member',
            cell: (member) => (
              <>
                <span class="wrap">{member.email}</span>
                {member.name !== '' && <span class="dim"> {member.name}</span>}{' '}
                {isMe(member) && <span class="tag">you</span>}
                <Reason id={reasonId(member)} of={fixedOf(member)} />
              </>
            ),
          },
          {
            head: 'Role',
            below: true,
            cell: (member) => (
              <select
                aria-label={`Role of ${member.email}`}
                aria-describedby={fixedOf(member).role && reasonId(member)}
                disabled={fixedOf(member).role !== undefined}
                value={member.role}
                onChange={(event) => void change(member, event.currentTarget.value as Role)}
              >
                <RoleOptions />
              </select>
            ),
          },
          {
            head: 'Joined',
            class: 'nowrap',
            below: true,
            cell: (member) => <Time at={member.created_at} />,
          },
        ]}
        actions={[
          {
            name: (member) => (isMe(member) ? 'Leave' : 'Remove'),
            about: (member) => (isMe(member) ? `Leave ${org.value?.name ?? ''}` : `Remove ${member.email}`),
            reasonId: (member) => fixedOf(member).leave && reasonId(member),
            warning: (member) =>
              isMe(member)
                ? list.data?.length === 1
                  ? 'You are the only member, so the organisation is deleted.'
                  : 'Your API keys of this organisation stop working at once, and your SSH keys can no longer log in to its instances.'
                : 'Their API keys of this organisation stop working at once, and their SSH keys can no longer log in to its instances.',
            work: async (member) => {
              await call('removeMember', { path: { id, user_id: member.id } });
              if (isMe(member)) chooseOrganisation(null);
            },
          },
        ]}
      />
    </Section>
  );
}

/** Why a member's role cannot be changed, and why the member cannot leave or be removed. */
interface Fixed {
  readonly role?: string;
  readonly leave?: string;
}

/** The server's rules are in src/control-plane/organisations/members.ts. */
function fixed(
  { role: of, by_groups }: Member,
  { members, are_all }: { readonly members: readonly Member[]; readonly are_all: boolean },
): Fixed {
  const groups = by_groups
    ? { role: `A group at ${settings.value?.oidc?.name ?? 'the provider'} gives this role.` }
    : {};
  if (of !== 'owner') return groups;
  if (role.value !== 'owner') {
    const reason = 'Only owners can change or remove an owner.';
    return { role: reason, leave: reason };
  }
  if (!are_all || members.filter((each) => each.role === 'owner').length > 1) return groups;
  if (members.length > 1) {
    const reason = 'The only owner: make another member owner before you leave or change this role.';
    return { role: reason, leave: reason };
  }
  // One text, also while the instances are not known yet: another one would move what is below.
  const reason = 'The only member stays its owner, and can leave once all instances are deleted.';
  return (instances.value ?? []).length > 0 ? { role: reason, leave: reason } : { role: reason };
}

const reasonId = ({ id }: Member) => `why-${id}`;

function Reason({ id, of }: { readonly id: string; readonly of: Fixed }) {
  const reasons = [...new Set([of.role, of.leave])].filter((each) => each !== undefined);
  if (reasons.length === 0) return null;
  return (
    <p class="hint" id={id}>
      {reasons.join(' ')}
    </p>
  );
}
