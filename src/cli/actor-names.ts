/** Names for the ids in events and audit entries, for people. Programs get the ids. */
import { BerthError } from '../../client/src/berth.ts';
import type { Call } from './command.ts';
import { collect } from './reading.ts';

export type NameOf = (actor: string) => string;

/** An API key may not list members, so other accounts stay ids. @returns the id when no name is known */
export function actorNames({ session, terminal }: Pick<Call, 'session' | 'terminal'>): NameOf {
  if (terminal.format !== 'human') return (id) => id;
  const { profile } = session;
  return (id) => {
    if (id === 'system') return 'Berth';
    if (id.startsWith('host_')) return 'the host';
    return profile !== undefined && profile.user_id === id ? profile.email : id;
  };
}

const MOST_INSTANCES = 1_000;

/** Names for targets: of instances that still exist. */
export async function targetNames(call: Pick<Call, 'session' | 'terminal'>): Promise<NameOf> {
  const actor = actorNames(call);
  if (call.terminal.format !== 'human') return actor;
  const found = call.session.berth().instances.list({ limit: 200 });
  const instances = await collect(found, MOST_INSTANCES).catch((error: unknown) => {
    // The key may read only the log.
    if (error instanceof BerthError && error.status === 403) return [];
    throw error;
  });
  const names = new Map(instances.map(({ id, name }) => [id as string, name]));
  return (id) => names.get(id) ?? actor(id);
}
