/** Asking people in, by mail. */
import { call, sayError } from '../api.ts';
import { role as my_role, org } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field, Select } from '../ui/field.tsx';
import { More } from '../ui/more.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';
import { useList } from '../use-list.ts';
import { ROLES, type Role } from './roles.ts';

export function Invitations() {
  const id = org.value?.id ?? '';
  const list = useList(`invitations ${id}`, (cursor) =>
    call('listInvitations', { path: { id }, query: cursor === undefined ? {} : { cursor } }),
  );
  const action = useAction(async (form: HTMLFormElement) => {
    const given = new FormData(form);
    const email = String(given.get('email')).trim();
    await call('createInvitation', { path: { id }, body: { email, role: given.get('role') as Role } });
    form.reset();
    tell('good', `The invitation is on its way to ${email}.`);
    await list.reload();
  });
  const withdraw = async (invitation_id: string) => {
    try {
      await call('deleteInvitation', { path: { id, invitation_id } });
    } catch (error) {
      tell('bad', sayError(error));
    }
    await list.reload();
  };
  return (
    <Section title="Invitations" lead="Whoever has the mail joins with it, within a week.">
      <form
        class="filter"
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(event.currentTarget);
        }}
      >
        <Field label="E-mail" name="email" type="email" required issue={action.issues['email']} />
        <Select label="Role" name="role">
          {ROLES.map((each) => (
            <option
              key={each}
              value={each}
              selected={each === 'member'}
              disabled={my_role.value !== 'owner' && each === 'owner'}
            >
              {each}
            </option>
          ))}
        </Select>
        <Button submit busy={action.busy}>
          Invite
        </Button>
      </form>
      <Failure text={action.error} />
      <Loaded query={list} lines={1}>
        {(invitations) =>
          invitations.length === 0 ? (
            <p class="panel dim">No invitation is open.</p>
          ) : (
            <table class="table">
              <thead>
                <tr>
                  <th>E-mail</th>
                  <th>Role</th>
                  <th>Ends</th>
                  <th class="end">
                    <span class="hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {invitations.map(({ id: invitation_id, email, role, expires_at }) => (
                  <tr key={invitation_id}>
                    <td class="wrap">{email}</td>
                    <td>{role}</td>
                    <td class="nowrap">
                      <Time at={expires_at} />
                    </td>
                    <td class="end">
                      <Button
                        small
                        kind="quiet"
                        aria-label={`Withdraw the invitation of ${email}`}
                        onClick={() => void withdraw(invitation_id)}
                      >
                        Withdraw
                      </Button>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
      <More more={list.more} />
    </Section>
  );
}
