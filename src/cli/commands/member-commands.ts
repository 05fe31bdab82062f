/** `berth member …`: who belongs to the organisation, and as what. */
import type { Member } from '../../../client/src/generated.ts';
import { type Call, type Command, PROOF } from '../command.ts';
import { collect, findNamed, type Kind } from '../reading.ts';
import { roleOf } from '../roles.ts';
import { asUser } from '../session.ts';
import { cell, flagCell, timeCell } from '../table.ts';

const MEMBER: Kind<Member> = {
  what: 'member',
  list: 'berth member ls',
  also: ({ email }) => [email, email.toLowerCase()],
  detail: ({ email }) => email,
};

async function list(call: Call): Promise<undefined> {
  const { terminal, session } = call;
  const members = await asUser(call, (berth, { org_id }) =>
    collect(berth.list('listMembers', { path: { id: org_id } })),
  );
  const own_id = session.profile?.user_id;
  terminal.list(members, {
    headings: ['E-MAIL', 'NAME', 'ROLE', 'JOINED', 'ID'],
    row: ({ id, email, name, role, created_at }) => [
      cell(id === own_id ? `${email} (you)` : email, email),
      name || '-',
      role,
      timeCell(created_at),
      id,
    ],
    more: { headings: ['YOU'], row: ({ id }) => [flagCell(id === own_id)] },
    quiet: ({ id }) => id,
    empty: 'No members.',
  });
}

async function changeRole(call: Call): Promise<undefined> {
  const [said = '', wanted = ''] = call.args;
  const role = roleOf('ROLE', wanted);
  const member = await asUser(call, async (berth, { org_id }) => {
    const { id } = await findNamed(berth.list('listMembers', { path: { id: org_id } }), said, MEMBER);
    return berth.call('changeMember', { path: { id: org_id, user_id: id }, body: { role } });
  });
  call.terminal.done(`${member.email} is now ${role}.`, member, member.id);
}

async function remove(call: Call): Promise<undefined> {
  const [said = ''] = call.args;
  const { id, email } = await asUser(call, async (berth, { org_id }) => {
    const member = await findNamed(berth.list('listMembers', { path: { id: org_id } }), said, MEMBER);
    await berth.call('removeMember', { path: { id: org_id, user_id: member.id } });
    return member;
  });
  const sentence =
    id === call.session.profile?.user_id
      ? 'You have left the organisation. Your API keys of it, and so this login, no longer work.'
      : `Removed ${email}. Their API keys of this organisation no longer work, and their SSH keys no longer log in to its instances.`;
  call.terminal.done(sentence, { removed: id }, id);
}

export const MEMBER_COMMANDS: readonly Command[] = [
  {
    name: 'member ls',
    password: 'unless_sudo',
    summary: 'list the members of the organisation and their roles',
    example: 'berth member ls',
    options: PROOF,
    run: list,
  },
  {
    name: 'member role',
    password: 'unless_sudo',
    args: ['MEMBER', 'ROLE'],
    summary: 'change the role of a member: owner, admin, member or billing',
    example: 'berth member role ada@example.org admin',
    options: PROOF,
    run: changeRole,
  },
  {
    name: 'member rm',
    password: 'unless_sudo',
    args: ['MEMBER'],
    summary: 'remove a member, whose keys lose access at once; or leave, by your own address',
    example: 'berth member rm ada@example.org',
    options: PROOF,
    run: remove,
  },
];
