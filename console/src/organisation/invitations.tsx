/** Invitations: by mail, or by a link if the server sends no mail. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { org } from '../live/membership.ts';
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

interface Link {
  readonly email: string;
  readonly accept_url: string;
}

export function Invitations() {
  const id = org.value?.id ?? '';
  const list = useList(`invitations ${id}`, (query) => call('listInvitations', { path: { id }, query }));
  const [link, setLink] = useState<Link | null>(null);
  const invite = async (form: FormData, element: HTMLFormElement) => {
    const email = String(form.get('email')).trim();
    const body = { email, role: form.get('role') as Role };
    const { accept_url } = await call('createInvitation', { path: { id }, body });
    element.reset();
    // The browser would reset it to the first option, which is owner.
    (element.elements.namedItem('role') as HTMLSelectElement).value = DEFAULT_ROLE;
    if (accept_url === undefined) tell('good', `The invitation is on its way to ${email}.`);
    else setLink({ email, accept_url });
    await list.reload();
  };
  return (
    <Section title="Invitations" lead="Whoever has the mail, or the link, joins with it, within a week.">
      <Form class="filter" verb="Invite" work={invite}>
        {(issues) => (
          <>
            <Field label="E-mail" name="email" type="email" required issue={issues['email']} />
            <Select label="Role" name="role">
              <RoleOptions selected={DEFAULT_ROLE} />
            </Select>
          </>
        )}
      </Form>
      {link !== null && (
        <SecretDialog
          title={`Invitation of ${link.email}`}
          secret={link.accept_url}
          label="Copy the link"
          onClose={() => setLink(null)}
        >
          <p>
            This server sends no mail. Give them this link: it works once, within a week, for an account with
            that address.
          </p>
        </SecretDialog>
      )}
      <ListTable
        list={list}
        lines={1}
        empty={<p class="panel dim">No invitation is open.</p>}
        columns={[
          { head: 'E-mail', class: 'wrap', cell: ({ email }) => email },
          { head: 'Role', cell: ({ role }) => role },
          { head: 'Ends', class: 'nowrap', cell: ({ expires_at }) => <Time at={expires_at} /> },
        ]}
        actions={[
          {
            name: 'Withdraw',
            about: ({ email }) => `Withdraw the invitation of ${email}`,
            work: ({ id: invitation_id }) => call('deleteInvitation', { path: { id, invitation_id } }),
          },
        ]}
      />
    </Section>
  );
}
