/** Who stands behind the ids of events and audit entries, as far as is known here. Programs get the ids. */
import type { Call } from './command.ts';

export type NameOf = (actor: string) => string;

/** An API key may not ask who the members are, so that others stay ids. @returns the id where no more is known of it */
export function actorNames({ session, terminal }: Pick<Call, 'session' | 'terminal'>): NameOf {
  if (terminal.format !== 'human') return (id) => id;
  const { profile } = session;
  return (id) => {
    if (id === 'system') return 'Berth';
    if (id.startsWith('host_')) return 'the host';
    return profile !== undefined && profile.user_id === id ? profile.email : id;
  };
}
