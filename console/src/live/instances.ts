/**
 * Keeps the list of the organisation's instances current. An event refreshes the list at once. Between events the list
 * is refreshed at an interval that depends on the VMs' states: every few seconds for the unsaved bytes of running VMs,
 * more often while a state changes.
 */
import { signal } from '@preact/signals';
import type { Instance, Vm } from '../../../client/src/berth.ts';
import { berth, sayError } from '../api.ts';
import { listen } from './streams.ts';

export const instances = signal<readonly Instance[] | undefined>(undefined);
export const instances_error = signal<string | null>(null);

const CHANGING_MS = 1_500;
const RUNNING_MS = 5_000;
const IDLE_MS = 20_000;
const SOON_MS = 60;
/**
 * The pause after a refresh, for each page of the list. A user has 1,200 requests a minute for all windows, and hundreds of
 * running VMs cause events all the time.
 */
const PAUSE_MS = 250;
const PAGE = 200;
export const MAX_INSTANCES = 1_000;
/** A refresh that takes longer is repeated, because its connection may be dead. */
const REFRESH_TIMEOUT_MS = 30_000;

const TRANSIENT: readonly Vm['state'][] = ['starting', 'restarting', 'suspending', 'stopping'];

export function isChanging({ vm, deleting }: Instance): boolean {
  return deleting || TRANSIENT.includes(vm.state);
}

let timer: ReturnType<typeof setTimeout> | undefined;
let running: AbortController | null = null;
/** The refresh under way. */
let refreshing: AbortController | null = null;
/** A refresh was requested since then: the answer under way may be older. */
let refresh_again = false;
/** In the time of `performance.now()`: no refresh begins sooner. */
let next_refresh_at_ms = 0;
/** The number of single instances that other answers changed in the list. A refresh that began before a change is stale. */
let changes = 0;

function planNext(within_ms?: number): void {
  clearTimeout(timer);
  if (running === null) return;
  const list = instances.value ?? [];
  const usual = list.some(isChanging)
    ? CHANGING_MS
    : list.some(({ vm }) => vm.state === 'running')
      ? RUNNING_MS
      : IDLE_MS;
  timer = setTimeout(
    () => void refresh(),
    Math.max(within_ms ?? usual, next_refresh_at_ms - performance.now()),
  );
}

async function refresh(): Promise<void> {
  const controller = running;
  // One at a time. A request meanwhile runs afterwards.
  if (controller === null || refreshing === controller) return;
  // The page is hidden; when it is visible again, it is refreshed at once.
  if (document.hidden) return;
  refreshing = controller;
  refresh_again = false;
  const changes_before = changes;
  const found: Instance[] = [];
  try {
    for await (const each of berth.list(
      'listInstances',
      { query: { limit: PAGE } },
      { signal: AbortSignal.any([controller.signal, AbortSignal.timeout(REFRESH_TIMEOUT_MS)]) },
    )) {
      found.push(each);
      if (found.length >= MAX_INSTANCES) break;
    }
    if (controller !== running) return;
    instances_error.value = null;
    if (changes === changes_before) {
      instances.value = found;
    }
  } catch (error) {
    if (controller !== running) return;
    instances_error.value = sayError(error);
  } finally {
    if (refreshing === controller) refreshing = null;
    next_refresh_at_ms = performance.now() + PAUSE_MS * Math.max(1, Math.ceil(found.length / PAGE));
  }
  planNext(refresh_again ? SOON_MS : undefined);
}

/** Refreshes the list soon. Coalesces many requests. */
export function refreshSoon(): void {
  refresh_again = true;
  planNext(SOON_MS);
}

/** Puts an instance from another answer into the list, until the next refresh. */
export function putInstance(next: Instance): void {
  changes += 1;
  const list = instances.value ?? [];
  instances.value = list.some(({ id }) => id === next.id)
    ? list.map((each) => (each.id === next.id ? next : each))
    : [next, ...list];
  refreshSoon();
}

export function putVm(vm: Vm): void {
  changes += 1;
  instances.value = instances.value?.map((each) =>
    each.id === vm.instance_id ? { ...each, vm, disk: vm.disk } : each,
  );
  refreshSoon();
}

/** Keeps the list current until `stop` aborts. */
export function runInstances(stop: AbortSignal): void {
  running?.abort();
  running = new AbortController();
  instances.value = undefined;
  instances_error.value = null;
  const ended = listen(({ kind }) => {
    if (kind === 'event' || kind === 'reset') refreshSoon();
  });
  document.addEventListener('visibilitychange', refreshSoon);
  stop.addEventListener('abort', () => {
    ended();
    document.removeEventListener('visibilitychange', refreshSoon);
    clearTimeout(timer);
    running?.abort();
    running = null;
  });
  void refresh();
}
