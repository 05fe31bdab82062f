/** Names for the ids of actors where the API tells none, for people. Programs get the ids. */
import { actorWords } from '../../client/src/event-words.ts';
import type { Call } from './command.ts';

export type NameOf = (actor: string) => string;

/** An API key may not list members, so other accounts stay ids. @returns the id when no name is known */
export function actorNames({ session, terminal }: Pick<Call, 'session' | 'terminal'>): NameOf {
  if (terminal.format !== 'human') return (id) => id;
  const { profile } = session;
  return (id) => actorWords(id, profile !== undefined && profile.user_id === id ? profile.email : null);
}
