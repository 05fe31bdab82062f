/** Names for the ids in events: a member's address, a service account's name. */
import { effect, signal } from '@preact/signals';
import { berth } from '../api.ts';
import { leads, org } from './membership.ts';

/** Names by id, without former members. Null: not loaded yet. */
const names = signal<ReadonlyMap<string, string> | null>(null);
/** The organisation whose names are loaded or being loaded. */
let loaded_org_id: string | null = null;

effect(() => {
  if (org.value !== null && org.value.id === loaded_org_id) return;
  loaded_org_id = null;
  names.value = null;
});

/** Loads names once for each organisation, on first use. If that fails, ids are shown. */
export function loadNames(): void {
  const id = org.value?.id;
  if (id === undefined || id === loaded_org_id) return;
  loaded_org_id = id;
  void load(id).catch(() => {
    if (loaded_org_id !== id) return;
    loaded_org_id = null;
    names.value = new Map();
  });
}

async function load(id: string): Promise<void> {
  const found = new Map<string, string>();
  for await (const member of berth.list('listMembers', { path: { id } })) found.set(member.id, member.email);
  if (leads()) for await (const each of berth.list('listServiceAccounts', {})) found.set(each.id, each.name);
  if (loaded_org_id === id) names.value = found;
}

/** True also if the names could not be loaded. */
export function namesLoaded(): boolean {
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

/** The id of an actor, given as an id, an address or a name. */
export function actorOf(said: string): string {
  const wanted = said.toLowerCase();
  for (const [id, name] of names.value ?? []) if (name.toLowerCase() === wanted) return id;
  return said;
}
