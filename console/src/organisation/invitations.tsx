/** Invitations: by mail, or by a link to pass on if the server sends no mail. */
import { useState } from 'preact/hooks';
import type { Invitation, ListedInvitation } from '../../../client/src/generated.ts';
import { localLinkWarning } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { org } from '../live/membership.ts';
import { sendsMail } from '../settings.ts';
import { Field, Select } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-list.ts';
import { RoleOptions } from './role-options.tsx';
import type { Role } from './roles.ts';

const DEFAULT_ROLE: Role = 'member';

export function Invitations() {
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
        {(issues) => (
          <>
            <Field label="E-mail" name="email" type="email" required issue={issues['email']} />
            <Select label="Role" name="role" defaultValue={DEFAULT_ROLE}>
              <RoleOptions />
            </Select>
          </>
        )}
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
