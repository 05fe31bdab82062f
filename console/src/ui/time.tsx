/** A time relative to now, kept current; the exact time is its tooltip. */
import { signal } from '@preact/signals';
import { ago, exactly } from '../format.ts';

/** A change renders all times again. */
const now = signal(Date.now());
setInterval(() => {
  now.value = Date.now();
}, 10_000);

export function Time({ at, none = 'never' }: { readonly at: string | null; readonly none?: string }) {
  if (at === null) return <span class="dim">{none}</span>;
  return (
    <time dateTime={at} title={exactly(at)}>
      {ago(at, Math.max(now.value, Date.now()))}
    </time>
  );
}
