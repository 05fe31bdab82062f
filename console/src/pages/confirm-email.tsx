/** Confirming a new address by the token sent there. */
import { call } from '../api.ts';
import { navigate, takeTokenOfLink } from '../router.ts';
import { user } from '../session.ts';
import { tell } from '../ui/toasts.tsx';
import { TokenPage } from './token-page.tsx';

export function ConfirmEmailPage() {
  const work = async (token: string) => {
    await call('confirmEmail', { body: { token } });
    user.value = await call('getMe', {});
    tell('good', 'The address is changed.');
    navigate('/account', { replace: true });
  };
  return <TokenPage title="Confirm the new address" verb="Confirm" token={takeTokenOfLink} work={work} />;
}
