/**
 * Holds the path of the current page, and navigates within the console without a reload. The paths are the browser's
 * own, so reload, bookmarks and the back button work. Also takes the token out of a link in a mail.
 */
import { signal } from '@preact/signals';

export const path = signal(location.pathname);

export function navigate(to: string, { replace = false } = {}): void {
  if (to === location.pathname + location.search + location.hash) return;
  history[replace ? 'replaceState' : 'pushState'](null, '', to);
  arrived();
}

function arrived(): void {
  const before = path.value;
  path.value = location.pathname;
  if (before === path.value) {
    // The link of a mail, pasted over the same page: its token is read when the page opens.
    if (location.hash.startsWith('#token=')) location.reload();
    return;
  }
  scrollTo(0, 0);
  // Screen readers and the keyboard start at the new page's content.
  requestAnimationFrame(() => document.querySelector<HTMLElement>('main')?.focus({ preventScroll: true }));
}

/** Links within the console do not reload the page. The browser follows all others. */
export function listenForNavigation(): void {
  addEventListener('popstate', arrived);
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest('a') : null;
    if (link?.target !== '' || link.hasAttribute('download') || link.origin !== location.origin) return;
    if (/^\/(v1|docs)(\/|$)/.test(link.pathname)) return;
    event.preventDefault();
    navigate(link.pathname + link.search + link.hash);
  });
}

/** The parts of a path, decoded: `/instances/web/terminal` is `['instances', 'web', 'terminal']`. */
export function partsOf(pathname: string): string[] {
  return pathname.split('/').filter(Boolean).map(decodeOrSame);
}

function decodeOrSame(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The token behind `#` in a mail's link, where no server or log sees it. Removed from the address bar. */
export function takeTokenOfLink(): string {
  const token = new URLSearchParams(location.hash.slice(1)).get('token') ?? '';
  if (token !== '') history.replaceState(null, '', location.pathname);
  return token;
}

/** The token in a pasted link or text. */
export function tokenIn(said: string): string {
  return /berth_mail_\w+/.exec(said)?.[0] ?? said.trim();
}
