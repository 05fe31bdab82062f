/** `/settings.json`: the settings of this server that the console and `berth doctor` need before a login. No secrets. */
import type { FastifyInstance } from 'fastify';
import type { AppContext } from '../context.ts';

const SETTINGS_PATH = '/settings.json';

export function registerSettings(
  app: FastifyInstance,
  {
    signups,
    has_smtp,
    oidc,
    password_login,
    public_url,
  }: Pick<AppContext, 'signups' | 'has_smtp' | 'oidc' | 'password_login' | 'public_url'>,
): void {
  // `files`: mails become files in the data folder, which only the operator can read.
  const settings = {
    signups,
    mail: has_smtp ? 'smtp' : 'files',
    password_login: password_login ? 'on' : 'off',
    // At the public URL, where the provider sends the browser back.
    oidc: oidc && { name: oidc.provider.name, login_url: `${public_url}/v1/auth/oidc/login` },
  };
  app.get(SETTINGS_PATH, { schema: { hide: true } }, (_request, reply) =>
    reply.header('cache-control', 'no-cache').send(settings),
  );
}
