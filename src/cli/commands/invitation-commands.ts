/** `berth invitation …`. Where the server sends no mail, the inviter passes the link on. */
import type { ListedInvitation } from '../../../client/src/generated.ts';
import { localLinkWarning } from '../../../client/src/words.ts';
import { type Call, type Command, PROOF } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { collect, findNamed, type Kind } from '../reading.ts';
import { roleOf } from '../roles.ts';
import { asUser } from '../session.ts';
import { timeCell } from '../table.ts';
import { mailTokenOf } from '../terminal.ts';

const INVITATION: Kind<ListedInvitation> = {
  what: 'invitation',
  list: 'berth invitation ls',
  also: ({ email }) => [email],
};

async function create(call: Call): Promise<undefined> {
  const { args, options, terminal } = call;
  const body = { email: args[0] ?? '', role: roleOf('--role', options.text('role') ?? 'member') };
  const made = await asUser(call, (berth, { org_id }) =>
    berth.call('createInvitation', { path: { id: org_id }, body }),
  );
  const sentence =
    made.accept_url === undefined
      ? `Invited ${made.email} as ${made.role}. A mail with a link is on its way. Anyone with the link can join for 7 days; it works once.`
      : `Invited ${made.email} as ${made.role}. This server sends no mail: pass this link on. Anyone with it can join for 7 days; it works once, and is shown only once:\n${made.accept_url}`;
  const warning = localLinkWarning(made.accept_url ?? '');
  terminal.done(
    warning === undefined ? sentence : `${sentence}\n${warning}`,
    made,
    made.accept_url ?? made.id,
  );
}

async function list(call: Call): Promise<undefined> {
  const found = await asUser(call, (berth, { org_id }) =>
    collect(berth.list('listInvitations', { path: { id: org_id } })),
  );
  call.terminal.list(found, {
    headings: ['E-MAIL', 'ROLE', 'INVITED', 'EXPIRES', 'ID'],
    row: ({ email, role, created_at, expires_at, id }) => [
      email,
      role,
      timeCell(created_at),
      timeCell(expires_at),
      id,
    ],
    quiet: ({ id }) => id,
    empty: 'No open invitations. Invite somebody: berth invitation create ADDRESS',
  });
}

async function remove(call: Call): Promise<undefined> {
  const gone = await asUser(call, async (berth, { org_id }) => {
    const open = berth.list('listInvitations', { path: { id: org_id } });
    const found = await findNamed(open, call.args[0] ?? '', INVITATION);
    await berth.call('deleteInvitation', { path: { id: org_id, invitation_id: found.id } });
    return found;
  });
  call.terminal.done(`Withdrew the invitation of ${gone.email}.`, { deleted: gone.id }, gone.id);
}

async function accept(call: Call): Promise<undefined> {
  const token = mailTokenOf(call.args[0] ?? '');
  const { session } = call;
  if (session.profile === undefined && !session.env['BERTH_API_KEY']) {
    throw new CommandError(`you are not logged in at ${session.url}`, {
      next: 'berth login, with an account of the invited address; without one: berth register LINK',
      exit_code: EXIT.not_authorised,
    });
  }
  const org = await asUser(call, (berth) => berth.call('acceptInvitation', { body: { token } }));
  const next = `berth login --org ${org.id} --profile NAME`;
  call.terminal.done(`You are now a member of ${org.name}. To work in it: ${next}`, org, org.id);
}

export const INVITATION_COMMANDS: readonly Command[] = [
  {
    name: 'invitation create',
    password: 'unless_sudo',
    args: ['ADDRESS'],
    fields: { email: 'ADDRESS' },
    summary: 'invite somebody to the organisation',
    example: 'berth invitation create ada@example.org --role admin',
    options: {
      role: { type: 'string', value: 'ROLE', help: 'owner, admin, member or billing; default: member' },
      ...PROOF,
    },
    run: create,
  },
  {
    name: 'invitation ls',
    password: 'unless_sudo',
    summary: 'list the open invitations of the organisation',
    example: 'berth invitation ls',
    options: PROOF,
    run: list,
  },
  {
    name: 'invitation rm',
    password: 'unless_sudo',
    args: ['INVITATION'],
    summary: 'withdraw an invitation, by its address or id; its link stops working',
    example: 'berth invitation rm ada@example.org',
    options: PROOF,
    run: remove,
  },
  {
    name: 'invitation accept',
    password: 'unless_sudo',
    args: ['LINK'],
    fields: { token: 'LINK' },
    summary: 'join an organisation by the link, or the token, of an invitation',
    details: 'For the account with the invited address. Without an account: berth register LINK.',
    example: 'berth invitation accept https://berth.example.org/invitation#token=…',
    options: PROOF,
    run: accept,
  },
];
