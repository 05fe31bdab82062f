/** `/settings.json`: the settings of this server that the console and `berth doctor` need before a login. No secrets. */
import type { FastifyInstance } from 'fastify';
import type { AppContext } from '../context.ts';

export const SETTINGS_PATH = '/settings.json';

export function registerSettings(
  app: FastifyInstance,
  { signups, has_smtp }: Pick<AppContext, 'signups' | 'has_smtp'>,
): void {
  // `files`: mails become files in the data folder, which only the operator can read.
  const settings = { signups, mail: has_smtp ? 'smtp' : 'files' };
  app.get(SETTINGS_PATH, { schema: { hide: true } }, (_request, reply) =>
    reply.header('cache-control', 'no-cache').send(settings),
  );
}
