/** `berth org …` of the user. `berth org quota` runs on the server (server-commands.ts). */
import type { Answer, Berth, Org } from '../../../client/src/berth.ts';
import { type Call, type Command, PROOF } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { collect } from '../reading.ts';
import { asUser } from '../session.ts';
import { cell, flagCell, quotaText, timeCell, when } from '../table.ts';

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

async function show(call: Call): Promise<undefined> {
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

async function list(call: Call): Promise<undefined> {
  const orgs = await asUser(call, (berth) => collect(berth.list('listOrgs', {})));
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

async function create(call: Call): Promise<undefined> {
  const body = { name: call.args[0] ?? '' };
  const org = await asUser(call, (berth) => berth.call('createOrg', { body }));
  const next = `berth login --org ${org.id} --profile NAME`;
  call.terminal.done(`Created ${org.name}. To work in it: ${next}`, org, org.id);
}

/** A change of the organisation's record. */
async function change(call: Call, org: Promise<Org>, sentence: (org: Org) => string): Promise<undefined> {
  const changed = await org;
  call.terminal.done(sentence(changed), changed, changed.id);
}

export const ORGANISATION_COMMANDS: readonly Command[] = [
  {
    name: 'org show',
    summary: 'show the organisation of this login, and its quotas',
    example: 'berth org show',
    run: show,
  },
  {
    name: 'org ls',
    password: 'unless_sudo',
    summary: 'list your organisations',
    example: 'berth org ls',
    options: PROOF,
    run: list,
  },
  {
    name: 'org create',
    password: 'unless_sudo',
    args: ['NAME'],
    summary: 'create another organisation, which you own',
    example: "berth org create 'Analytical Engines'",
    options: PROOF,
    run: create,
  },
  {
    name: 'org rename',
    args: ['NAME'],
    summary: 'rename the organisation of this login',
    example: "berth org rename 'Analytical Engines'",
    run: (call) => {
      const input = { path: { id: orgIdOf(call) }, body: { name: call.args[0] ?? '' } };
      const renamed = call.session.berth().call('changeOrg', input);
      return change(call, renamed, ({ name }) => `The organisation is now called ${name}.`);
    },
  },
  {
    name: 'org billing-email',
    password: 'unless_sudo',
    args: ['ADDRESS'],
    fields: { email: 'ADDRESS' },
    summary: 'change the billing address; both addresses get a mail',
    example: 'berth org billing-email bills@example.org',
    options: PROOF,
    run: (call) => {
      const body = { email: call.args[0] ?? '' };
      const set = (berth: Berth, { org_id }: { readonly org_id: string }) =>
        berth.call('changeBillingEmail', { path: { id: org_id }, body });
      const changed = asUser(call, set);
      return change(call, changed, ({ billing_email }) => `Bills now go to ${billing_email}.`);
    },
  },
];
