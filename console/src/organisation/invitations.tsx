/** Asking people in, by mail. */
import { call } from '../api.ts';
import { org } from '../live/membership.ts';
import { Field, Select } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { ListTable } from '../ui/listed.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-list.ts';
import { RoleOptions } from './role-options.tsx';
import type { Role } from './roles.ts';

const DEFAULT_ROLE: Role = 'member';

export function Invitations() {
  const id = org.value?.id ?? '';
  const list = useList(`invitations ${id}`, (query) => call('listInvitations', { path: { id }, query }));
  const invite = async (form: FormData, element: HTMLFormElement) => {
    const email = String(form.get('email')).trim();
    await call('createInvitation', { path: { id }, body: { email, role: form.get('role') as Role } });
    element.reset();
    // To which the browser would not go back by itself: it takes the first one, which is owner.
    (element.elements.namedItem('role') as HTMLSelectElement).value = DEFAULT_ROLE;
    tell('good', `The invitation is on its way to ${email}.`);
    await list.reload();
  };
  return (
    <Section title="Invitations" lead="Whoever has the mail joins with it, within a week.">
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
