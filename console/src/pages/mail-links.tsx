/** The pages that links in mails open: they accept an invitation, confirm an address, or set a new password. */

import { useState } from 'preact/hooks';
import { EmailField, NewPasswordField, TokenField } from '../account/credentials.tsx';
import { call } from '../api.ts';
import { chooseOrganisation } from '../live/membership.ts';
import { navigate, takeTokenOfLink, tokenIn } from '../router.ts';
import { anonymous, ended, user } from '../session.ts';
import { sendsMail } from '../settings.ts';
import { Copyable } from '../ui/button.tsx';
import { Checkbox, Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Gate, PageHead, Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';

/** Joins an organisation by a mail's link, for a user with an account. */
export function InvitationPage() {
  const work = async (token: string) => {
    const joined = await call('acceptInvitation', { body: { token } });
    dropInvitation();
    navigate('/', { replace: true });
    chooseOrganisation(joined.id);
  };
  return (
    <TokenPage
      title="Invitation"
      lead={`You are logged in as ${user.value?.email ?? ''}.`}
      verb="Join the organisation"
      token={() => keepInvitation(takeTokenOfLink()) || keptInvitation()}
      work={work}
    />
  );
}

const CARRIED = 'berth-invitation';
/**
 * The token of an invitation's link, kept in memory during a login, because it is a secret. On the way to the OpenID
 * provider this page ends; then the tab's own storage has the token until the browser is back.
 */
let kept = takeCarried();

function takeCarried(): string {
  const carried = sessionStorage.getItem(CARRIED) ?? '';
  sessionStorage.removeItem(CARRIED);
  return carried;
}

export function keepInvitation(token: string): string {
  if (token !== '') kept = token;
  return token;
}

export function keptInvitation(): string {
  return kept;
}

/** Called when the browser leaves for the provider. */
export function carryInvitation(): void {
  if (kept !== '') sessionStorage.setItem(CARRIED, kept);
}

export function dropInvitation(): void {
  kept = '';
}

/** Confirms the account's first or new address with the token from a mail. The first address's mail can be sent again. */
export function ConfirmEmailPage() {
  const work = async (token: string) => {
    await call('confirmEmail', { body: { token } });
    user.value = await call('getMe', {});
    tell('good', 'Confirmed the address.');
    navigate('/account', { replace: true });
  };
  const email = user.value?.email ?? '';
  return (
    <>
      <TokenPage title="Confirm the address" verb="Confirm" token={takeTokenOfLink} work={work} />
      {user.value?.email_confirmed === false && <SendAgain email={email} />}
    </>
  );
}

function SendAgain({ email }: { readonly email: string }) {
  const work = async (form: FormData, element: HTMLFormElement) => {
    await call('changeEmail', { body: { email, password: String(form.get('password')) } });
    element.reset();
    tell('good', `A mail to ${email} has a new link.`);
  };
  return (
    <Section
      title="No mail?"
      lead={
        <>
          It went to {email}. If that is mistyped, <a href="/account">change it</a>.
        </>
      }
    >
      <Form class="stack narrow" verb="Send it again" work={work}>
        <Field
          label="Your password"
          name="password"
          type="password"
          autocomplete="current-password"
          required
        />
      </Form>
    </Section>
  );
}

interface Props {
  readonly title: string;
  readonly lead?: string;
  readonly verb: string;
  readonly token: () => string;
  readonly work: (token: string) => Promise<void>;
}

/** An action of a logged-in user with a token from a mail, taken from the link or typed. */
function TokenPage({ verb, token, work, ...head }: Props) {
  const [known] = useState(token);
  return (
    <>
      <PageHead {...head} />
      <Form
        class="stack narrow"
        verb={verb}
        primary
        work={(form) => work(tokenIn(String(form.get('token'))))}
      >
        <TokenField token={known} />
      </Form>
    </>
  );
}

/** Resets a forgotten password: requests the mail, and sets a new password with the token in it. */
export function PasswordResetPage() {
  const [token] = useState(takeTokenOfLink);
  const [step, setStep] = useState<'ask' | 'set'>(token === '' ? 'ask' : 'set');
  return (
    <Gate title="Forgotten password">
      {step === 'set' && <SetPassword token={token} />}
      {step === 'ask' && (sendsMail() ? <Ask onSent={() => setStep('set')} /> : <AskTheOperator />)}
      <p class="gate-links">
        <a href="/login">Back to the login</a>
        {step === 'ask' && (
          <button type="button" class="link" onClick={() => setStep('set')}>
            I have a link
          </button>
        )}
      </p>
    </Gate>
  );
}

/** Says the same for every address, so it does not tell whether an account exists. */
function AskTheOperator() {
  return (
    <>
      <p>This server sends no mail, so it cannot send you a link. Ask its operator to run this on it:</p>
      <Copyable text="berth user reset-password ADDRESS" label="Copy the command" />
      <p>It prints a new password.</p>
    </>
  );
}

function Ask({ onSent }: { readonly onSent: () => void }) {
  const work = async (form: FormData) => {
    await anonymous.call('requestPasswordReset', { body: { email: String(form.get('email')).trim() } });
    onSent();
  };
  return (
    <Form verb="Send the mail" primary work={work}>
      <p>If the address has an account, a mail with a link goes there. The link works for an hour.</p>
      <EmailField />
    </Form>
  );
}

function SetPassword({ token }: { readonly token: string }) {
  const work = async (form: FormData) => {
    const said = (name: string) => String(form.get(name));
    const body = {
      token: tokenIn(said('token')),
      new_password: said('new_password'),
      revoke_all: form.get('revoke_all') !== null,
    };
    await anonymous.call('confirmPasswordReset', { body });
    ended.value = 'The password is set. Log in with it.';
    navigate('/login', { replace: true });
  };
  return (
    <Form verb="Set the password" primary work={work}>
      <TokenField token={token} />
      <NewPasswordField label="New password" name="new_password" />
      <Checkbox
        label="Also remove API keys, SSH keys and second factors"
        name="revoke_all"
        hint="Choose this if somebody else may have used the account. All sessions end in any case."
      />
    </Form>
  );
}
