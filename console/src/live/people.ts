/** Names for the ids in events: a member's address, a service account's name. */
import { effect, signal } from '@preact/signals';
import { berth } from '../api.ts';
import { leads, org } from './membership.ts';

/** By id, without former members. Null: not loaded yet. */
const names = signal<ReadonlyMap<string, string> | null>(null);
/** Of which organisation they are, or are being asked for. */
let learnt: string | null = null;

effect(() => {
  if (org.value !== null && org.value.id === learnt) return;
  learnt = null;
  names.value = null;
});

/** Loads names once for each organisation, on first use. If that fails, ids are shown. */
export function learnPeople(): void {
  const id = org.value?.id;
  if (id === undefined || id === learnt) return;
  learnt = id;
  void learn(id).catch(() => {
    if (learnt !== id) return;
    learnt = null;
    names.value = new Map();
  });
}

async function learn(id: string): Promise<void> {
  const found = new Map<string, string>();
  for await (const member of berth.list('listMembers', { path: { id } })) found.set(member.id, member.email);
  if (leads()) for await (const each of berth.list('listServiceAccounts', {})) found.set(each.id, each.name);
  if (learnt === id) names.value = found;
}

/** Or known that they cannot be learnt now. */
export function peopleKnown(): boolean {
  return names.value !== null;
}

/** The display name; null if only the id is known. */
export function nameOf(actor: string): string | null {
  if (actor.startsWith('host_')) return 'the host';
  if (actor === 'system') return 'Berth';
  const name = names.value?.get(actor) ?? null;
  // A service account may have any name, even a user's address.
  return name !== null && actor.startsWith('sa_') ? `${name} (service account)` : name;
}

/** The id that is meant by an id or an address. */
export function actorOf(said: string): string {
  const wanted = said.toLowerCase();
  for (const [id, name] of names.value ?? []) if (name.toLowerCase() === wanted) return id;
  return said;
}
