import { actorWords } from '../../../client/src/event-words.ts';

/** Who acted: the name if it is known, with the id as tooltip. */
export function Actor({ id, name }: { readonly id: string; readonly name: string | null }) {
  const words = actorWords(id, name);
  if (words === id) return <code class="wrap">{id}</code>;
  return (
    <span class="wrap" title={id}>
      {words}
    </span>
  );
}
