/**
 * The commands `berth org …`, `member …` and `invitation …`: manage the user's organisations, their members and
 * invitations. If the server sends no mail, `berth invitation create` prints the link for the inviter to pass on.
 * `berth org quota` is in server.ts, because it runs on the server.
 */
import type { Answer, Berth, Org } from '../../../client/src/berth.ts';
import type { ListedInvitation, Member } from '../../../client/src/generated.ts';
import { localLinkWarning } from '../../../client/src/words.ts';
import type { Call, Command } from '../command.ts';
import { CommandError, EXIT } from '../command-error.ts';
import { collect, findNamed, type ResourceKind } from '../reading.ts';
import { inSession } from '../session.ts';
import { cell, flagCell, quotaText, timeCell, when } from '../table.ts';
import { mailTokenOf } from '../terminal.ts';
import { choiceOf, ROLES } from '../values.ts';

type Quota = Answer<'getOrgQuota'>;

const QUOTAS: readonly (readonly [keyof Quota, string])[] = [
  ['instances', 'instances'],
  ['cpus', 'cpus'],
  ['memory_mib', 'memory'],
  ['disk_gib', 'disk'],
  ['api_keys', 'API keys'],
  ['service_accounts', 'service accounts'],
  ['webhooks', 'webhooks'],
  ['streams', 'streams'],
];

/** The organisation that the login acts in. @throws CommandError with a key from the environment */
function orgIdOf({ session }: Call): string {
  const { profile } = session;
  if (profile !== undefined && !session.env['BERTH_API_KEY']) return profile.org_id;
  throw new CommandError('a key from BERTH_API_KEY does not tell its organisation', { next: 'berth login' });
}

async function showOrg(call: Call): Promise<undefined> {
  const berth = call.session.berth();
  const path = { id: orgIdOf(call) };
  const [org, quota] = await Promise.all([
    berth.call('getOrg', { path }),
    berth.call('getOrgQuota', { path }),
  ]);
  call.terminal.one(
    { ...org, quota },
    {
      rows: () => [
        ['name', org.name],
        ['id', org.id],
        ['billing e-mail', org.billing_email],
        ['created', when(org.created_at)],
        ...QUOTAS.map(([key, name]) => {
          const { used, limit } = quota[key];
          const most = limit === null ? 'unlimited' : quotaText(key, limit);
          return [name, `${quotaText(key, used)} of ${most}`] as const;
        }),
      ],
      quiet: () => org.id,
    },
  );
}

async function listOrgs(call: Call): Promise<undefined> {
  const orgs = await inSession(call, (berth) => collect(berth.list('listOrgs', {})));
  const current = call.session.profile?.org_id;
  call.terminal.list(orgs, {
    headings: ['NAME', 'CREATED', 'ID'],
    row: ({ id, name, created_at }) => [
      cell(id === current ? `${name} (this login)` : name, name),
      timeCell(created_at),
      id,
    ],
    more: { headings: ['CURRENT'], row: ({ id }) => [flagCell(id === current)] },
    quiet: ({ id }) => id,
    empty: 'No organisations.',
  });
}

async function createOrg(call: Call): Promise<undefined> {
  const body = { name: call.args[0] ?? '' };
  const org = await inSession(call, (berth) => berth.call('createOrg', { body }));
  const next = `berth login --org ${org.id} --profile NAME`;
  call.terminal.done(`Created ${org.name}. To work in it: ${next}`, org, org.id);
}

/** A change of the organisation's record. */
async function changeOrg(call: Call, org: Promise<Org>, sentence: (org: Org) => string): Promise<undefined> {
  const changed = await org;
  call.terminal.done(sentence(changed), changed, changed.id);
}

const MEMBER: ResourceKind<Member> = {
  what: 'member',
  list: 'berth member ls',
  also: ({ email }) => [email, email.toLowerCase()],
  detail: ({ email }) => email,
};

async function listMembers(call: Call): Promise<undefined> {
  const { terminal, session } = call;
  const members = await inSession(call, (berth, { org_id }) =>
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
  const role = choiceOf('ROLE', wanted, ROLES);
  const member = await inSession(call, async (berth, { org_id }) => {
    const { id } = await findNamed(berth.list('listMembers', { path: { id: org_id } }), said, MEMBER);
    return berth.call('changeMember', { path: { id: org_id, user_id: id }, body: { role } });
  });
  call.terminal.done(`${member.email} is now ${role}.`, member, member.id);
}

async function removeMember(call: Call): Promise<undefined> {
  const [said = ''] = call.args;
  const { id, email } = await inSession(call, async (berth, { org_id }) => {
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

const INVITATION: ResourceKind<ListedInvitation> = {
  what: 'invitation',
  list: 'berth invitation ls',
  also: ({ email }) => [email],
};

async function invite(call: Call): Promise<undefined> {
  const { args, options, terminal } = call;
  const body = { email: args[0] ?? '', role: choiceOf('--role', options.text('role') ?? 'member', ROLES) };
  const made = await inSession(call, (berth, { org_id }) =>
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

async function listInvitations(call: Call): Promise<undefined> {
  const found = await inSession(call, (berth, { org_id }) =>
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

async function withdrawInvitation(call: Call): Promise<undefined> {
  const gone = await inSession(call, async (berth, { org_id }) => {
    const open = berth.list('listInvitations', { path: { id: org_id } });
    const found = await findNamed(open, call.args[0] ?? '', INVITATION);
    await berth.call('deleteInvitation', { path: { id: org_id, invitation_id: found.id } });
    return found;
  });
  call.terminal.done(`Withdrew the invitation of ${gone.email}.`, { deleted: gone.id }, gone.id);
}

async function acceptInvitation(call: Call): Promise<undefined> {
  const token = mailTokenOf(call.args[0] ?? '');
  const { session } = call;
  if (session.profile === undefined && !session.env['BERTH_API_KEY']) {
    throw new CommandError(`you are not logged in at ${session.url}`, {
      next: 'berth login, with an account of the invited address; without one: berth register LINK',
      exit_code: EXIT.not_authorised,
    });
  }
  const org = await inSession(call, (berth) => berth.call('acceptInvitation', { body: { token } }));
  const next = `berth login --org ${org.id} --profile NAME`;
  call.terminal.done(`You are now a member of ${org.name}. To work in it: ${next}`, org, org.id);
}

export const ORGANISATION_COMMANDS: readonly Command[] = [
  {
    name: 'org show',
    summary: 'show the organisation of this login, and its quotas',
    example: 'berth org show',
    run: showOrg,
  },
  {
    name: 'org ls',
    password: 'unless_sudo',
    summary: 'list your organisations',
    example: 'berth org ls',
    run: listOrgs,
  },
  {
    name: 'org create',
    password: 'unless_sudo',
    args: ['NAME'],
    summary: 'create another organisation, which you own',
    example: "berth org create 'Analytical Engines'",
    run: createOrg,
  },
  {
    name: 'org rename',
    args: ['NAME'],
    summary: 'rename the organisation of this login',
    example: "berth org rename 'Analytical Engines'",
    run: (call) => {
      const input = { path: { id: orgIdOf(call) }, body: { name: call.args[0] ?? '' } };
      const renamed = call.session.berth().call('changeOrg', input);
      return changeOrg(call, renamed, ({ name }) => `The organisation is now called ${name}.`);
    },
  },
  {
    name: 'org billing-email',
    password: 'unless_sudo',
    args: ['ADDRESS'],
    fields: { email: 'ADDRESS' },
    summary: 'change the billing address; both addresses get a mail',
    example: 'berth org billing-email bills@example.org',
    run: (call) => {
      const body = { email: call.args[0] ?? '' };
      const set = (berth: Berth, { org_id }: { readonly org_id: string }) =>
        berth.call('changeBillingEmail', { path: { id: org_id }, body });
      const changed = inSession(call, set);
      return changeOrg(call, changed, ({ billing_email }) => `Bills now go to ${billing_email}.`);
    },
  },
  {
    name: 'member ls',
    password: 'unless_sudo',
    summary: 'list the members of the organisation and their roles',
    example: 'berth member ls',
    run: listMembers,
  },
  {
    name: 'member role',
    password: 'unless_sudo',
    args: ['MEMBER', 'ROLE'],
    summary: 'change the role of a member: owner, admin, member or billing',
    example: 'berth member role ada@example.org admin',
    run: changeRole,
  },
  {
    name: 'member rm',
    password: 'unless_sudo',
    args: ['MEMBER'],
    summary: 'remove a member, whose keys lose access at once; or leave, by your own address',
    example: 'berth member rm ada@example.org',
    run: removeMember,
  },
  {
    name: 'invitation create',
    password: 'unless_sudo',
    args: ['ADDRESS'],
    fields: { email: 'ADDRESS' },
    summary: 'invite somebody to the organisation',
    example: 'berth invitation create ada@example.org --role admin',
    options: {
      role: { type: 'string', value: 'ROLE', help: 'owner, admin, member or billing; default: member' },
    },
    run: invite,
  },
  {
    name: 'invitation ls',
    password: 'unless_sudo',
    summary: 'list the open invitations of the organisation',
    example: 'berth invitation ls',
    run: listInvitations,
  },
  {
    name: 'invitation rm',
    password: 'unless_sudo',
    args: ['INVITATION'],
    summary: 'withdraw an invitation, by its address or id; its link stops working',
    example: 'berth invitation rm ada@example.org',
    run: withdrawInvitation,
  },
  {
    name: 'invitation accept',
    password: 'unless_sudo',
    args: ['LINK'],
    fields: { token: 'LINK' },
    summary: 'join an organisation by the link, or the token, of an invitation',
    details: 'For the account with the invited address. Without an account: berth register LINK.',
    example: 'berth invitation accept https://berth.example.org/invitation#token=…',
    run: acceptInvitation,
  },
];
