/** Who did it: by name where that is known, with the id for who points at it. */
import { useEffect } from 'preact/hooks';
import { learnPeople, nameOf } from '../live/people.ts';

export function Actor({ id }: { readonly id: string }) {
  useEffect(learnPeople, []);
  const name = nameOf(id);
  if (name === null) return <code class="wrap">{id}</code>;
  return (
    <span class="wrap" title={id}>
      {name}
    </span>
  );
}
