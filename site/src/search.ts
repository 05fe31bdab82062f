/**
 * The search of the documentation site. It runs in the browser: at the first search the browser fetches the index of
 * all texts from this server.
 */
import MiniSearch from 'minisearch';
import type { Found } from './found.ts';

const MOST = 12;
const LONG = 6;
/** Why Berth is as it is comes after how to use it. */
const FOR_FEW = /^\/docs\/(?:adr|measurements|asvs|architecture|bench|changelog)\b/;
/** Of a result's text, in characters, around the first word that was found. */
const BEFORE = 40;
const SHOWN = 150;

interface Index {
  readonly all: readonly Found[];
  readonly search: MiniSearch;
}

interface Parts {
  readonly input: HTMLInputElement;
  readonly list: HTMLUListElement;
  readonly status: HTMLElement;
}

let loading: Promise<Index> | undefined;

export function startSearch(): void {
  const form = document.querySelector<HTMLFormElement>('.search');
  const input = form?.querySelector('input');
  const list = form?.querySelector('ul');
  const status = form?.querySelector<HTMLElement>('[role=status]');
  if (!form || !input || !list || !status) return;
  const parts = { input, list, status };
  form.hidden = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    list.querySelector('a')?.click();
  });
  input.addEventListener('focus', () => void loadIndex());
  input.addEventListener('input', () => void show(parts));
  form.addEventListener('keydown', (event) => move(event, parts));
  form.addEventListener('focusout', ({ relatedTarget }) => {
    if (!form.contains(relatedTarget as Node | null)) list.hidden = true;
  });
  input.addEventListener('focus', () => {
    list.hidden = list.childElementCount === 0;
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.target instanceof HTMLInputElement)
      return;
    event.preventDefault();
    input.focus();
  });
}

function loadIndex(): Promise<Index> {
  loading ??= readIndex();
  // The next search tries again.
  loading.catch(() => {
    loading = undefined;
  });
  return loading;
}

async function readIndex(): Promise<Index> {
  const answer = await fetch(document.body.dataset['index'] ?? '');
  if (!answer.ok) throw new Error(`the search's index: ${answer.status}`);
  const all = (await answer.json()) as Found[];
  const search = new MiniSearch({
    fields: ['title', 'page', 'text'],
    storeFields: ['address'],
    searchOptions: {
      boost: { title: 4, page: 2 },
      prefix: true,
      // Of a short word, one other letter makes another word.
      fuzzy: (word) => (word.length < LONG ? false : 0.2),
      combineWith: 'AND',
      boostDocument: (_id, _word, stored) => (FOR_FEW.test(String(stored?.['address'])) ? 0.4 : 1),
    },
  });
  search.addAll(all.map((each, id) => ({ id, ...each })));
  return { all, search };
}

async function show({ input, list, status }: Parts): Promise<void> {
  const wanted = input.value;
  const index = await loadIndex().catch(() => null);
  // Something else was typed meanwhile.
  if (input.value !== wanted) return;
  const results = index?.search.search(wanted).slice(0, MOST) ?? [];
  list.replaceChildren(
    ...results.flatMap(({ id, terms }) => {
      const found = index?.all[Number(id)];
      return found ? [itemOf(found, terms)] : [];
    }),
  );
  if (wanted.trim() === '') status.textContent = '';
  else if (index === null) status.textContent = 'The search could not be loaded. Try again.';
  else status.textContent = results.length === 0 ? 'Nothing found.' : `${results.length} results`;
  if (results.length === 0 && status.textContent !== '') list.replaceChildren(line(status.textContent));
  list.hidden = list.childElementCount === 0;
}

function line(text: string): HTMLLIElement {
  const item = document.createElement('li');
  item.className = 'none';
  item.textContent = text;
  return item;
}

function itemOf({ address, page, title, text }: Found, terms: readonly string[]): HTMLLIElement {
  const item = document.createElement('li');
  const link = document.createElement('a');
  link.href = address;
  const name = document.createElement('strong');
  name.textContent = title;
  const place = document.createElement('span');
  place.textContent = page === title ? '' : page;
  const excerpt = document.createElement('small');
  excerpt.textContent = excerptOf(text, terms);
  link.append(name, ' ', place, ' ', excerpt);
  item.append(link);
  return item;
}

function excerptOf(text: string, terms: readonly string[]): string {
  const lower = text.toLowerCase();
  const places = terms.map((term) => lower.indexOf(term)).filter((at) => at >= 0);
  const from = Math.max(0, Math.min(...places, text.length) - BEFORE);
  const start = places.length === 0 ? 0 : from;
  return `${start > 0 ? '…' : ''}${text.slice(start, start + SHOWN)}${text.length > start + SHOWN ? '…' : ''}`;
}

/** The arrow keys go through the results, Escape closes them. */
function move(event: KeyboardEvent, { input, list }: Parts): void {
  const stops: (Element | null)[] = [input, ...list.querySelectorAll('a')];
  const at = stops.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step !== undefined) {
    event.preventDefault();
    const next = stops[Math.max(0, Math.min(at + step, stops.length - 1))];
    if (next instanceof HTMLElement) next.focus();
  } else if (event.key === 'Escape' && !list.hidden) {
    event.preventDefault();
    input.focus();
    list.hidden = true;
  }
}
