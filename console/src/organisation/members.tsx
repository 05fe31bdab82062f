/** Who is in the organisation, and as what. */
import { useState } from 'preact/hooks';
import type { Member } from '../../../client/src/generated.ts';
import { call, sayError } from '../api.ts';
import { chooseOrganisation, loadMembership, role as my_role, org } from '../live/membership.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { More } from '../ui/more.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-list.ts';
import { ROLES, type Role } from './roles.ts';

export function Members() {
  const id = org.value?.id ?? '';
  const [removed, setRemoved] = useState<Member | null>(null);
  const list = useList(`members ${id}`, (cursor) =>
    call('listMembers', { path: { id }, query: cursor === undefined ? {} : { cursor } }),
  );
  const change = async (member: Member, role: Role) => {
    try {
      await call('changeMember', { path: { id, user_id: member.id }, body: { role } });
      if (member.id === user.value?.id) await loadMembership();
    } catch (error) {
      tell('bad', sayError(error));
    }
    await list.reload();
  };
  const isMe = (member: Member) => member.id === user.value?.id;
  return (
    <Section title="Members">
      <Loaded query={list}>
        {(members) => (
          <table class="table">
            <thead>
              <tr>
                <th>Member</th>
                <th>Role</th>
                <th class="wide-only">Joined</th>
                <th class="end">
                  <span class="hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {members.map((member) => (
                <tr key={member.id}>
                  <td>
                    <span class="wrap">{member.email}</span>
                    {member.name !== '' && <span class="dim"> {member.name}</span>}
                    {isMe(member) && <span class="tag">you</span>}
                  </td>
                  <td>
                    <select
                      aria-label={`Role of ${member.email}`}
                      value={member.role}
                      onChange={(event) => void change(member, event.currentTarget.value as Role)}
                    >
                      {ROLES.map((each) => (
                        <option
                          key={each}
                          value={each}
                          disabled={my_role.value !== 'owner' && each === 'owner'}
                        >
                          {each}
                        </option>
                      ))}
                    </select>
                  </td>
                  <td class="wide-only nowrap">
                    <Time at={member.created_at} />
                  </td>
                  <td class="end">
                    <Button
                      small
                      kind="quiet"
                      aria-label={isMe(member) ? 'Leave' : `Remove ${member.email}`}
                      onClick={() => setRemoved(member)}
                    >
                      {isMe(member) ? 'Leave' : 'Remove'}
                    </Button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </Loaded>
      <More more={list.more} />
      {removed && (
        <ConfirmDialog
          title={isMe(removed) ? `Leave ${org.value?.name ?? ''}` : `Remove ${removed.email}`}
          verb={isMe(removed) ? 'Leave' : 'Remove'}
          onClose={() => setRemoved(null)}
          work={async () => {
            await call('removeMember', { path: { id, user_id: removed.id } });
            if (isMe(removed)) chooseOrganisation(null);
            else await list.reload();
          }}
        >
          <p>Their API keys of this organisation end at once, and their SSH keys let them in no more.</p>
        </ConfirmDialog>
      )}
    </Section>
  );
}
