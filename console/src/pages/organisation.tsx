/** The page of the organisation: its name, members with their roles, invitations, and its use of quotas. */
import { useState } from 'preact/hooks';
import type { Invitation, ListedInvitation, Member } from '../../../client/src/generated.ts';
import { localLinkWarning } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { mebibytes } from '../format.ts';
import { instances } from '../live/instances.ts';
import { chooseOrganisation, leads, loadMembership, org, role, whyNoLead } from '../live/membership.ts';
import { user } from '../session.ts';
import { sendsMail, settings } from '../settings.ts';
import { Button } from '../ui/button.tsx';
import { SecretDialog } from '../ui/dialog.tsx';
import { Field, Select } from '../ui/field.tsx';
import { Form, FormDialog } from '../ui/form.tsx';
import { Loaded, PageHead, Section } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { attempt } from '../use-action.ts';
import { useList, useQuery } from '../use-query.ts';

export function OrganisationPage() {
  const [creating, setCreating] = useState(false);
  return (
    <>
      <PageHead
        title={org.value?.name ?? 'Organisation'}
        lead={`Your role here is ${role.value ?? 'member'}.`}
        actions={<Button onClick={() => setCreating(true)}>New organisation</Button>}
      />
      <Quota />
      {leads() && <Members />}
      {leads() && <Invitations />}
      <Settings />
      {creating && <CreateOrganisation onClose={() => setCreating(false)} />}
    </>
  );
}

function Settings() {
  const id = org.value?.id ?? '';
  const rename = async (form: FormData) => {
    await call('changeOrg', { path: { id }, body: { name: String(form.get('name')).trim() } });
    await loadMembership();
    tell('good', 'Saved.');
  };
  const bill = async (form: FormData) => {
    await call('changeBillingEmail', { path: { id }, body: { email: String(form.get('email')).trim() } });
    await loadMembership();
    tell('good', 'Changed the billing address. The old and the new address get a mail.');
  };
  const bills = leads() || role.value === 'billing';
  return (
    <Section title="Settings">
      <div class="panel columns">
        <Form verb="Rename" edits work={rename} reason={whyNoLead()}>
          <Field
            label="Name"
            name="name"
            required
            maxLength={100}
            disabled={!leads()}
            defaultValue={org.value?.name ?? ''}
          />
        </Form>
        <Form verb="Change" edits work={bill} reason={bills ? undefined : whyNoLead()}>
          <Field
            label="Billing address"
            name="email"
            type="text"
            inputMode="email"
            required
            disabled={!bills}
            defaultValue={org.value?.billing_email ?? ''}
          />
        </Form>
      </div>
    </Section>
  );
}

function CreateOrganisation({ onClose }: { readonly onClose: () => void }) {
  const work = async (form: FormData) => {
    const made = await call('createOrg', { body: { name: String(form.get('name')).trim() } });
    onClose();
    chooseOrganisation(made.id);
  };
  return (
    <FormDialog title="New organisation" verb="Create" onClose={onClose} work={work}>
      <Field label="Name" name="name" required autofocus maxLength={100} />
    </FormDialog>
  );
}

/** The organisation's members and their roles. */
function Members() {
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

const DEFAULT_ROLE: Role = 'member';

/** Invitations: by mail, or by a link to pass on if the server sends no mail. */
function Invitations() {
  const id = org.value?.id ?? '';
  const path = { id };
  const list = useList(`invitations ${id}`, (query) => call('listInvitations', { path, query }));
  const [made, setMade] = useState<Invitation | null>(null);
  const show = (invitation: Invitation) => {
    if (invitation.accept_url !== undefined) setMade(invitation);
    else tell('good', `A mail with the invitation is on its way to ${invitation.email}.`);
  };
  const invite = async (form: FormData, element: HTMLFormElement) => {
    const body = { email: String(form.get('email')).trim(), role: form.get('role') as Role };
    show(await call('createInvitation', { path, body }));
    element.reset();
    await list.reload();
  };
  const withdraw = ({ id: invitation_id }: ListedInvitation) =>
    call('deleteInvitation', { path: { id, invitation_id } });
  // The server keeps only the hash of a token, so another link is another invitation.
  const inviteAgain = async (each: ListedInvitation) => {
    await withdraw(each);
    show(await call('createInvitation', { path, body: { email: each.email, role: each.role } }));
  };
  return (
    <Section title="Invitations" lead={LEADS[sendsMail() ? 'smtp' : 'files']}>
      <Form class="filter" verb="Invite" work={invite}>
        <Field label="E-mail" name="email" type="email" required />
        <Select label="Role" name="role" defaultValue={DEFAULT_ROLE}>
          <RoleOptions />
        </Select>
      </Form>
      {made !== null && <InvitationLink invitation={made} onClose={() => setMade(null)} />}
      <ListTable
        list={list}
        lines={1}
        empty={<p class="panel dim">No open invitations.</p>}
        columns={[
          { head: 'E-mail', class: 'wrap', cell: ({ email }) => email },
          { head: 'Role', below: true, cell: ({ role }) => role },
          {
            head: 'Expires',
            class: 'nowrap',
            below: true,
            cell: ({ expires_at }) => <Time at={expires_at} />,
          },
        ]}
        actions={[
          {
            name: sendsMail() ? 'Send again' : 'New link',
            about: ({ email }) => `${sendsMail() ? 'Send again' : 'New link'}: invitation of ${email}`,
            warning: 'The link that they have stops working, and a new one is valid for 7 days.',
            work: inviteAgain,
          },
          {
            name: 'Withdraw',
            about: ({ email }) => `Withdraw the invitation of ${email}`,
            work: withdraw,
          },
        ]}
      />
    </Section>
  );
}

const LEADS = {
  smtp: 'Each goes by mail. Anyone with its link can join for 7 days. It works once.',
  files:
    'This server sends no mail: pass the link on yourself. Anyone with it can join for 7 days. It works once.',
} as const;

interface LinkProps {
  readonly invitation: Invitation;
  readonly onClose: () => void;
}

function InvitationLink({ invitation: { email, accept_url = '' }, onClose }: LinkProps) {
  const warning = localLinkWarning(accept_url);
  return (
    <SecretDialog
      title={`Invitation for ${email}`}
      secret={accept_url}
      label="Copy invitation link"
      onClose={onClose}
    >
      <p>
        This server sends no mail: send this link to {email} yourself. Anyone with this link can join for 7
        days, as {email}. It works once.
      </p>
      {warning !== undefined && <p class="notice">{warning}</p>}
    </SecretDialog>
  );
}

/** The options of a role field. Only owners may choose owner. */
function RoleOptions() {
  return (
    <>
      {ROLES.map((each) => (
        <option key={each} value={each} disabled={role.value !== 'owner' && each === 'owner'}>
          {each}
        </option>
      ))}
    </>
  );
}

const ROLES = ['owner', 'admin', 'member', 'billing'] as const;
type Role = (typeof ROLES)[number];

const plain = (value: number) => String(value);
const SHOWN = [
  ['instances', 'Instances', plain],
  ['cpus', 'CPUs', plain],
  ['memory_mib', 'Memory', mebibytes],
  ['disk_gib', 'Disk', (value: number) => `${value} GiB`],
  ['api_keys', 'API keys', plain],
  ['service_accounts', 'Service accounts', plain],
  ['webhooks', 'Webhooks', plain],
  ['streams', 'Live streams and consoles', plain],
] as const;

/** The organisation's usage and quotas. */
function Quota() {
  const id = org.value?.id ?? '';
  const query = useQuery(`quota ${id}`, () => call('getOrgQuota', { path: { id } }));
  return (
    <Section title="Quotas">
      <Loaded query={query} lines={1}>
        {(quota) => (
          <dl class="facts panel">
            {SHOWN.map(([key, name, format]) => {
              const { used, limit } = quota[key];
              return (
                <div key={key}>
                  <dt>{name}</dt>
                  <dd>
                    {format(used)}
                    <span class="dim">{limit === null ? ', no limit' : ` of ${format(limit)}`}</span>
                    {limit !== null && <meter min={0} max={limit} value={used} aria-label={name} />}
                  </dd>
                </div>
              );
            })}
          </dl>
        )}
      </Loaded>
    </Section>
  );
}
