/**
 * The parts that pages are made of: heading, sections, empty lists, placeholders while data loads, and errors. Also the
 * page before a login (`Gate`).
 */
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

/** The frame of every page: a heading, actions, and the content or its error. */
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

/** An error, announced at once to screen readers. */
export function Failure({ text }: { readonly text: string | null | undefined }) {
  return (
    <div role="alert" class={text ? 'failure' : 'failure none'}>
      {text && (
        <>
          <Icon name="warning" />
          <span>{text}</span>
        </>
      )}
    </div>
  );
}

export function NotFoundPage({ what = 'page' }: { readonly what?: string }) {
  return (
    <>
      <PageHead title="Not found" />
      <Empty icon="warning" title={`There is no such ${what}`}>
        <p>
          {what === 'page'
            ? 'Check its address.'
            : 'It was deleted, belongs to another organisation, or never existed.'}
        </p>
        <p>
          <a class="button plain" href="/">
            Go to the instances
          </a>
        </p>
      </Empty>
    </>
  );
}

/** The page before login: the name and one form. */
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
