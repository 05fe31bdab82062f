/** The actor: the name if it is known, with the id as tooltip. */
import { useEffect } from 'preact/hooks';
import { org } from '../live/membership.ts';
import { learnPeople, nameOf, peopleKnown } from '../live/people.ts';
import type { List } from '../use-list.ts';

export function Actor({ id }: { readonly id: string }) {
  const name = nameOf(id);
  if (name === null) return <code class="wrap">{id}</code>;
  return (
    <span class="wrap" title={id}>
      {name}
    </span>
  );
}

/** A list in which actors are: seen once they are known, so that no row moves when they are learnt. */
export function useActors<T>(list: List<T>): List<T> {
  useEffect(learnPeople, [org.value?.id]);
  return peopleKnown() ? list : { ...list, data: undefined, more: undefined };
}
