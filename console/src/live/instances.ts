/**
 * The organisation's instances as they are now. Events say when to look again at once; between them the list is read
 * again as often as what it shows can change: dirty bytes of a running VM every few seconds, a VM on its way sooner.
 */
import { signal } from '@preact/signals';
import type { Instance, Vm } from '../../../client/src/berth.ts';
import { berth, sayError } from '../api.ts';
import { listen } from './streams.ts';

export const instances = signal<readonly Instance[] | undefined>(undefined);
export const instances_error = signal<string | null>(null);

export interface DirtySample {
  readonly at_ms: number;
  readonly dirty_bytes: number;
}
/** Of each instance of the list, since this page was opened: the server keeps no history of it. */
export const dirty_samples = new Map<string, DirtySample[]>();

const ON_ITS_WAY_MS = 1_500;
const RUNNING_MS = 5_000;
const AT_REST_MS = 20_000;
const AT_ONCE_MS = 60;
/**
 * After a look, for each page of it: a person may ask 1,200 times a minute in all their windows, and with hundreds of
 * running VMs something happens all the time.
 */
const REST_MS = 250;
const KEPT_SAMPLES = 360;
const PAGE = 200;
const AT_MOST = 1_000;
/** A list that takes longer is asked for anew: its connection may have swallowed the answer. */
const LOOK_MS = 30_000;

const TRANSIENT: readonly Vm['state'][] = ['starting', 'restarting', 'suspending', 'stopping'];

export function isOnItsWay({ vm, deleting }: Instance): boolean {
  return deleting || TRANSIENT.includes(vm.state);
}

let timer: ReturnType<typeof setTimeout> | undefined;
let running: AbortController | null = null;
/** The refresh under way. */
let looking: AbortController | null = null;
/** Requested since then: the answer under way may be older. */
let asked_again = false;
/** By `performance.now()`: no look that is asked for begins sooner. */
let rested_at_ms = 0;
/** The number of answers applied to the list: a request from before them is older. */
let puts = 0;

function planNext(within_ms?: number): void {
  clearTimeout(timer);
  if (running === null) return;
  const list = instances.value ?? [];
  const usual = list.some(isOnItsWay)
    ? ON_ITS_WAY_MS
    : list.some(({ vm }) => vm.state === 'running')
      ? RUNNING_MS
      : AT_REST_MS;
  timer = setTimeout(() => void look(), Math.max(within_ms ?? usual, rested_at_ms - performance.now()));
}

async function look(): Promise<void> {
  const controller = running;
  // One at a time. A request meanwhile runs afterwards.
  if (controller === null || looking === controller) return;
  // The page is hidden; when it is visible again, it is refreshed at once.
  if (document.hidden) return;
  looking = controller;
  asked_again = false;
  const puts_before = puts;
  const found: Instance[] = [];
  try {
    for await (const each of berth.list(
      'listInstances',
      { query: { limit: PAGE } },
      { signal: AbortSignal.any([controller.signal, AbortSignal.timeout(LOOK_MS)]) },
    )) {
      found.push(each);
      if (found.length >= AT_MOST) break;
    }
    if (controller !== running) return;
    instances_error.value = null;
    if (puts === puts_before) {
      instances.value = found;
      found.forEach(sample);
      forgetOthers(found);
    }
  } catch (error) {
    if (controller !== running) return;
    instances_error.value = sayError(error);
  } finally {
    if (looking === controller) looking = null;
    rested_at_ms = performance.now() + REST_MS * Math.max(1, Math.ceil(found.length / PAGE));
  }
  planNext(asked_again ? AT_ONCE_MS : undefined);
}

function sample({ id, disk, vm }: Instance): void {
  if (vm.state === 'stopped') return;
  const samples = dirty_samples.get(id) ?? [];
  samples.push({ at_ms: Date.now(), dirty_bytes: disk.dirty_bytes });
  dirty_samples.set(id, samples.slice(-KEPT_SAMPLES));
}

function forgetOthers(found: readonly Instance[]): void {
  const ids = new Set(found.map(({ id }) => id));
  for (const id of dirty_samples.keys()) if (!ids.has(id)) dirty_samples.delete(id);
}

/** Soon, once for many askings. */
export function lookAgain(): void {
  asked_again = true;
  planNext(AT_ONCE_MS);
}

/** Puts one instance of an answer into the list, until the next refresh. */
export function putInstance(next: Instance): void {
  puts += 1;
  const list = instances.value ?? [];
  instances.value = list.some(({ id }) => id === next.id)
    ? list.map((each) => (each.id === next.id ? next : each))
    : [next, ...list];
  lookAgain();
}

export function putVm(vm: Vm): void {
  puts += 1;
  instances.value = instances.value?.map((each) =>
    each.id === vm.instance_id ? { ...each, vm, disk: vm.disk } : each,
  );
  lookAgain();
}

/** Until the signal says so. */
export function runInstances(stop: AbortSignal): void {
  running?.abort();
  running = new AbortController();
  instances.value = undefined;
  instances_error.value = null;
  const ended = listen(({ kind }) => {
    if (kind === 'event' || kind === 'reset') lookAgain();
  });
  document.addEventListener('visibilitychange', lookAgain);
  stop.addEventListener('abort', () => {
    ended();
    document.removeEventListener('visibilitychange', lookAgain);
    clearTimeout(timer);
    running?.abort();
    running = null;
  });
  void look();
}
