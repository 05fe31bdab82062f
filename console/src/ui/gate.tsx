/** The page before login: the name and one form. */
import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';

export function Gate({ title, children }: { readonly title: string; readonly children: ComponentChildren }) {
  useEffect(() => {
    document.title = `${title} · Berth`;
  }, [title]);
  return (
    <main class="gate" tabIndex={-1}>
      <div class="gate-card">
        <p class="brand">
          <Mark />
          Berth
        </p>
        <h1>{title}</h1>
        {children}
      </div>
    </main>
  );
}

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="7" class="mark-ground" />
      <path d="M7 19h18l-2.600 5.200a2 2 0 0 1-1.800 1.100h-9.200a2 2 0 0 1-1.800-1.100z" class="mark-hull" />
      <path d="M10 16.500v-5h5v5zM17 16.500V7.700h5v8.800z" class="mark-load" />
    </svg>
  );
}
