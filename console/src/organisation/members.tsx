/** The organisation's members and their roles. */
import type { Member } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { attempt } from '../attempt.ts';
import { chooseOrganisation, loadMembership, org } from '../live/membership.ts';
import { user } from '../session.ts';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';
import { RoleOptions } from './role-options.tsx';
import type { Role } from './roles.ts';

export function Members() {
  const id = org.value?.id ?? '';
  const list = useList(`members ${id}`, (query) => call('listMembers', { path: { id }, query }));
  const change = async (member: Member, role: Role) => {
    await attempt(async () => {
      await call('changeMember', { path: { id, user_id: member.id }, body: { role } });
      if (member.id === user.value?.id) await loadMembership();
    });
    await list.reload();
  };
  const isMe = (member: Member) => member.id === user.value?.id;
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
              </>
            ),
          },
          {
            head: 'Role',
            cell: (member) => (
              <select
                aria-label={`Role of ${member.email}`}
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
            warning: (member) =>
              isMe(member)
                ? 'Your API keys of this organisation stop working at once, and your SSH keys can no longer log in to its instances.'
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
