/**
 * Shows a time relative to now, kept current, with the exact time as tooltip. A click on any time shows all times of
 * the page exactly, or all relative again.
 */
import { signal } from '@preact/signals';
import { ago, exactly } from '../format.ts';

/** A change renders all times again. */
const now_ms = signal(Date.now());
setInterval(() => {
  now_ms.value = Date.now();
}, 10_000);

export const times_are_exact = signal(false);

export function toggleTimes(): void {
  times_are_exact.value = !times_are_exact.value;
}

export function Time({ at }: { readonly at: string | null }) {
  if (at === null) return <span class="dim">never</span>;
  const exact = exactly(at);
  const text = times_are_exact.value ? exact : ago(at, Math.max(now_ms.value, Date.now()));
  return (
    <button
      type="button"
      class={times_are_exact.value ? 'time exact' : 'time'}
      title={exact}
      onClick={toggleTimes}
    >
      <time dateTime={at}>{text}</time>
    </button>
  );
}
