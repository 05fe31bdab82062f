/**
 * The account page: lists second factors and sessions, changes the user's name, address and password, and deletes the
 * account.
 */

import { useState } from 'preact/hooks';
import { programName } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { plural } from '../format.ts';
import { forget, logout, user } from '../session.ts';
import { sendsMail } from '../settings.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { ConfirmDialog, Form } from '../ui/form.tsx';
import { PageHead, Section } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-query.ts';
import { NewPasswordField } from './credentials.tsx';
import { Factors } from './second-factors.tsx';

export function AccountPage() {
  return (
    <>
      <PageHead title="Account" lead={user.value?.email} />
      <Factors />
      <Sessions />
      <ProfileForm />
      {user.value?.password_login && <PasswordForm />}
      <DeleteAccount />
    </>
  );
}

/** Name and address of the account. A new address must be confirmed. */
function ProfileForm() {
  const rename = async (form: FormData) => {
    const name = String(form.get('name')).trim();
    user.value = await call('changeMe', { body: { name } });
    tell('good', 'Saved.');
  };
  const move = async (form: FormData, element: HTMLFormElement) => {
    const email = String(form.get('email')).trim();
    await call('changeEmail', { body: { email, password: String(form.get('password')) } });
    element.reset();
    tell(
      'good',
      sendsMail()
        ? `A mail to ${email} has a link. The address changes once you have opened it.`
        : `This server sends no mail. The mail with the link is a file on the server, in the folder mail/ of its data folder; its operator can pass it on.`,
    );
  };
  const token = (
    <a class="aside" href="/email">
      I have a confirmation link
    </a>
  );
  return (
    <Section title="Name and address">
      <div class="panel columns">
        <Form verb="Save" edits work={rename}>
          <Field
            label="Name"
            name="name"
            required
            maxLength={100}
            autocomplete="name"
            defaultValue={user.value?.name ?? ''}
          />
        </Form>
        {user.value?.password_login && (
          <Form verb="Change the address" aside={token} work={move}>
            <Field label="New e-mail" name="email" type="email" autocomplete="email" required />
            <Field
              label="Your password"
              name="password"
              type="password"
              autocomplete="current-password"
              required
            />
          </Form>
        )}
      </div>
    </Section>
  );
}

/** Changes the password of the account. */
function PasswordForm() {
  const work = async (form: FormData, element: HTMLFormElement) => {
    const said = (name: string) => String(form.get(name));
    const body = { current_password: said('current_password'), new_password: said('new_password') };
    await call('changePassword', { body });
    element.reset();
    tell('good', 'Changed the password. Your other sessions have ended.');
  };
  return (
    <Section title="Password" lead="Changing it ends all other sessions.">
      <Form class="panel columns" verb="Change the password" work={work}>
        <input type="hidden" name="username" autocomplete="username" value={user.value?.email ?? ''} />
        <Field
          label="Current password"
          name="current_password"
          type="password"
          autocomplete="current-password"
          required
        />
        <NewPasswordField label="New password" name="new_password" />
      </Form>
    </Section>
  );
}

/** The user's sessions. */
function Sessions() {
  const [asked, setAsked] = useState(false);
  const list = useList('sessions', (query) => call('listSessions', { query }));
  const endOthers = async () => {
    const { count } = await call('revokeOtherSessions', {});
    await list.reload();
    tell('good', count === 0 ? 'There was no other session.' : `Logged out ${plural(count, 'session')}.`);
  };
  return (
    <Section
      title="Sessions"
      lead="Where you are logged in."
      actions={<Button onClick={() => setAsked(true)}>Log out all other sessions</Button>}
    >
      <ListTable
        list={list}
        empty={null}
        columns={[
          {
            head: 'Program',
            cell: ({ user_agent, current }) => (
              <>
                <span title={user_agent}>{programName(user_agent)}</span>{' '}
                {current && <span class="tag accent">this one</span>}
              </>
            ),
          },
          { head: 'Address', class: 'nowrap', below: true, cell: ({ ip }) => ip },
          {
            head: 'Last seen',
            class: 'nowrap',
            below: true,
            cell: (each) => <Time at={each.last_seen_at} />,
          },
          { head: 'Expires', class: 'nowrap', below: true, cell: (each) => <Time at={each.ends_at} /> },
        ]}
        actions={[
          {
            name: 'Log out',
            about: (each) => `Log out: ${programName(each.user_agent)}, ${each.ip}`,
            work: ({ id, current }) => (current ? logout() : call('revokeSession', { path: { id } })),
          },
        ]}
      />
      {asked && (
        <ConfirmDialog
          title="Log out all other sessions"
          verb="Log out"
          onClose={() => setAsked(false)}
          work={endOthers}
        >
          <p>
            All other browsers are logged out at once. API keys, and so the logins of command lines, stay
            valid.
          </p>
        </ConfirmDialog>
      )}
    </Section>
  );
}

/** Deletes the account, after its owner has typed its address. */
function DeleteAccount() {
  const [asked, setAsked] = useState(false);
  return (
    <Section
      title="Delete the account"
      lead="Also deletes the organisations that only you belong to, and everything in them."
    >
      <Button kind="danger" onClick={() => setAsked(true)}>
        Delete my account
      </Button>
      {asked && (
        <ConfirmDialog
          title="Delete my account"
          verb="Delete permanently"
          word={user.value?.email ?? ''}
          onClose={() => setAsked(false)}
          work={async () => {
            await call('deleteMe', {});
            forget('Deleted the account.');
          }}
        >
          <p>
            Your keys, sessions and memberships end at once. The organisations that only you belong to are
            deleted too, with their instances. This cannot be undone.
          </p>
        </ConfirmDialog>
      )}
    </Section>
  );
}
