/**
 * The script of the API reference at `/docs/api`, which the server renders. It adds the search and the copy buttons,
 * and applies the theme that the user chose in the console. Without this script the page still has all of its text and
 * links.
 */
import '../styles/tokens.css';
import '../styles/base.css';
import './reference.css';
import { readChoice } from '../choices.ts';
import { startCopyButtons } from './copy.ts';

interface Entry {
  readonly article: HTMLElement;
  readonly link: HTMLElement | undefined;
  readonly text: string;
}

document.documentElement.dataset['theme'] = readChoice('theme') ?? 'system';
if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', start);
else start();

function start(): void {
  startCopyButtons();
  const box = document.querySelector<HTMLElement>('.search');
  const input = document.querySelector<HTMLInputElement>('#search');
  if (!box || !input) return;
  box.hidden = false;
  const entries = entriesOf();
  input.addEventListener('input', () => search(entries, input.value));
  // Also what the browser has kept of an earlier visit.
  if (input.value !== '') search(entries, input.value);
}

function entriesOf(): readonly Entry[] {
  const links = new Map<string, HTMLElement>();
  for (const link of document.querySelectorAll<HTMLAnchorElement>('.contents details a')) {
    if (link.parentElement) links.set(link.hash.slice(1), link.parentElement);
  }
  return [...document.querySelectorAll<HTMLElement>('article.entry')].map((article) => ({
    article,
    link: links.get(article.id),
    text: `${article.id} ${article.textContent}`.toLowerCase(),
  }));
}

function said(found: number, all: number): string {
  return found === 0 ? 'Nothing has every one of these words.' : `${found} of ${all}`;
}

/** Shows the entries that have every word, and the groups that have such entries. */
function search(entries: readonly Entry[], wanted: string): void {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const searching = words.length > 0;
  let found = 0;
  for (const { article, link, text } of entries) {
    const fits = words.every((word) => text.includes(word));
    found += fits ? 1 : 0;
    article.hidden = !fits;
    if (link) link.hidden = !fits;
  }
  for (const group of document.querySelectorAll<HTMLDetailsElement>('.contents details')) {
    group.hidden = group.querySelector('li:not([hidden])') === null;
    group.open = searching && !group.hidden;
  }
  const shown = (group: HTMLElement) => group.querySelector('article') !== null;
  for (const group of document.querySelectorAll<HTMLElement>('section.group')) {
    group.hidden = searching && !(shown(group) && group.querySelector('article:not([hidden])') !== null);
  }
  for (const part of document.querySelectorAll<HTMLElement>('.introduction')) part.hidden = searching;
  const told = document.querySelector('#found');
  if (told) told.textContent = searching ? said(found, entries.length) : '';
}
