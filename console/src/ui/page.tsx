/** The frame of every page: a heading, actions, and the content or its error. */
import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';
import { lost_since_ms } from '../live/connection.ts';
import { Button } from './button.tsx';
import { Icon, type IconName } from './icon.tsx';

interface HeadProps {
  readonly title: string;
  readonly lead?: ComponentChildren;
  readonly actions?: ComponentChildren;
}

export function PageHead({ title, lead, actions }: HeadProps) {
  useEffect(() => {
    document.title = `${title} · Berth`;
  }, [title]);
  return (
    <header class="page-head">
      <div>
        <h1>{title}</h1>
        {lead !== undefined && <p class="lead">{lead}</p>}
      </div>
      {actions !== undefined && <div class="page-actions">{actions}</div>}
    </header>
  );
}

interface EmptyProps {
  readonly icon: IconName;
  readonly title: string;
  readonly children: ComponentChildren;
}

/** Shown instead of an empty list: describes the items, and how to create one. */
export function Empty({ icon, title, children }: EmptyProps) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <h2>{title}</h2>
      {children}
    </div>
  );
}

interface LoadedProps<T> {
  readonly query: {
    readonly data: T | undefined;
    readonly error: string | null;
    readonly reload: () => Promise<void>;
  };
  readonly children: (data: T) => ComponentChildren;
  /** The expected number of lines, for which space is reserved. */
  readonly lines?: number;
}

export function Loaded<T>({ query, children, lines = 3 }: LoadedProps<T>) {
  const { data, error, reload } = query;
  if (data !== undefined) {
    return (
      <>
        {error !== null && lost_since_ms.value === null && <p class="stale">Not current: {error}</p>}
        {children(data)}
      </>
    );
  }
  if (error !== null) {
    return (
      <div class="empty" role="alert">
        <Icon name="warning" />
        <h2>This could not be loaded</h2>
        <p>{error}</p>
        <Button onClick={() => void reload()}>Try again</Button>
      </div>
    );
  }
  return (
    <div class="skeleton" aria-busy="true" role="status">
      <span class="hidden">Loading</span>
      {Array.from({ length: lines }, (_, nth) => (
        <span key={nth} />
      ))}
    </div>
  );
}

/** A part of a page with its heading. */
export function Section({
  title,
  lead,
  actions,
  children,
}: HeadProps & { readonly children: ComponentChildren }) {
  return (
    <section class="section">
      <header class="section-head">
        <div>
          <h2>{title}</h2>
          {lead !== undefined && <p class="lead">{lead}</p>}
        </div>
        {actions !== undefined && <div class="page-actions">{actions}</div>}
      </header>
      {children}
    </section>
  );
}
