/** The actor: the name if it is known, with the id as tooltip. */
import { useEffect } from 'preact/hooks';
import { org } from '../live/membership.ts';
import { loadNames, nameOf, namesLoaded } from '../live/people.ts';
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

/** A list that shows actors. It appears once their names are loaded, so that no row changes its size later. */
export function useActors<T>(list: List<T>): List<T> {
  useEffect(loadNames, [org.value?.id]);
  return namesLoaded() ? list : { ...list, data: undefined, more: undefined };
}
