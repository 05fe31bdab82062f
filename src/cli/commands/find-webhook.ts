import type { Berth, Webhook } from '../../../client/src/berth.ts';
import type { Call } from '../command.ts';
import { findNamed, type Kind } from '../reading.ts';
import { ago } from '../table.ts';

export const WEBHOOK: Kind<Webhook> = {
  what: 'webhook',
  list: 'berth webhook ls',
  detail: ({ url, events, created_at }) => `${url}, ${events.join(' ')}, created ${ago(created_at)}`,
};

/** The webhook that the first argument names, by name or id. @throws CommandError */
export async function findWebhook({
  session,
  args,
}: Pick<Call, 'session' | 'args'>): Promise<{ readonly berth: Berth; readonly webhook: Webhook }> {
  const berth = session.berth();
  return { berth, webhook: await findNamed(berth.list('listWebhooks', {}), args[0] ?? '', WEBHOOK) };
}
