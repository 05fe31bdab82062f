/** The user's account: name, address, password, second factors, sessions, and its deletion. */

import { DeleteAccount } from '../account/delete-account.tsx';
import { Factors } from '../account/factors.tsx';
import { PasswordForm } from '../account/password-form.tsx';
import { ProfileForm } from '../account/profile-form.tsx';
import { Sessions } from '../account/sessions.tsx';
import { user } from '../session.ts';
import { PageHead } from '../ui/page.tsx';

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
