/** BERTH_PASSWORD_LOGIN=off: the OpenID provider is the only way to log in, and routes that take a password or a passkey say so. */
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';

/** A hook of those routes. @throws AppError FORBIDDEN */
export function requirePasswordLogin({ oidc, password_login }: Pick<AppContext, 'oidc' | 'password_login'>) {
  return async (): Promise<void> => {
    if (password_login) return;
    throw new AppError('FORBIDDEN', {
      message: `Passwords and passkeys are switched off here. Log in at ${oidc?.provider.name ?? 'the OpenID provider'}, in the console.`,
    });
  };
}
