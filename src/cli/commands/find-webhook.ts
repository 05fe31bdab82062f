import type { Berth, Webhook } from '../../../client/src/berth.ts';
import type { Call } from '../command.ts';
import { findNamed } from '../reading.ts';

const WEBHOOK = { what: 'webhook', list: 'berth webhook ls' };

/** The webhook that the first argument names, by name or id. @throws CommandError */
export async function findWebhook({
  session,
  args,
}: Pick<Call, 'session' | 'args'>): Promise<{ readonly berth: Berth; readonly webhook: Webhook }> {
  const berth = session.berth();
  return { berth, webhook: await findNamed(berth.list('listWebhooks', {}), args[0] ?? '', WEBHOOK) };
}
