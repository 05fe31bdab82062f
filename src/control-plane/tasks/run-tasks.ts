/**
 * Runs background tasks by a timer and by wake-ups. A task takes no input: each run reads from the database what is to
 * be done. A task may run in any number of processes at once.
 */
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { NotifyHub, Topic } from '../db/notify.ts';

export interface Task {
  readonly name: string;
  readonly every_ms: number;
  /** A notification that wakes the task. */
  readonly wake_on?: Topic;
  /** Subscribes to a signal of this process that wakes the task; returns the function that unsubscribes. */
  readonly wake_by?: (wake: () => void) => () => void;
  /** The least time between the starts of two runs: wake-ups in between are coalesced. */
  readonly gap_ms?: number;
  readonly run: () => Promise<void>;
}

/** Runs the tasks until `signal` aborts; resolves when all of them have ended. A run that fails is logged and retried. */
export async function runTasks(
  tasks: readonly Task[],
  hub: NotifyHub,
  log: Log,
  signal: AbortSignal,
): Promise<void> {
  await Promise.all(tasks.map((task) => runTask(task, hub, log, signal)));
}

async function runTask(task: Task, hub: NotifyHub, log: Log, signal: AbortSignal): Promise<void> {
  let failures = 0;
  while (!signal.aborted) {
    let wait_ms = task.every_ms;
    const began_ms = performance.now();
    // Subscribed before the run: a wake-up during the run is not missed.
    const woken = wakeUps(task, hub);
    try {
      await task.run();
      failures = 0;
    } catch (error) {
      log.warn({ err: error, task: task.name }, 'task failed');
      wait_ms = backoffMs(failures++, 200, task.every_ms);
    }
    await pause(wait_ms, AbortSignal.any([signal, woken.signal]));
    woken.unsubscribe();
    const early_ms = began_ms + (task.gap_ms ?? 0) - performance.now();
    if (early_ms > 0) await pause(early_ms, signal);
  }
}

/** The default abort reason is an error with a stack, which costs more than the wake-up. */
const WOKEN = 'woken';

function wakeUps(
  { wake_on, wake_by }: Task,
  hub: NotifyHub,
): { readonly signal: AbortSignal; readonly unsubscribe: () => void } {
  const woken = new AbortController();
  const wake = () => woken.abort(WOKEN);
  const unsubscribes = [
    ...(wake_on === undefined ? [] : [hub.subscribe(wake_on, '', wake)]),
    ...(wake_by === undefined ? [] : [wake_by(wake)]),
  ];
  return {
    signal: woken.signal,
    unsubscribe: () => {
      for (const unsubscribe of unsubscribes) unsubscribe();
    },
  };
}

/** After so many failures in a row, what all items need is unavailable: the rest waits for the task's next run. */
const FAILURES_MAX = 3;

/** Works on one item after another; an item that fails does not stop the next. @throws AggregateError of all failures, at the end */
export async function eachInTurn<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const failures: unknown[] = [];
  let in_a_row = 0;
  for (const item of items) {
    try {
      await work(item);
      in_a_row = 0;
    } catch (error) {
      failures.push(error);
      in_a_row += 1;
      if (in_a_row === FAILURES_MAX) break;
    }
  }
  if (failures.length === 0) return;
  throw new AggregateError(failures, `${failures.length} failed, the first with: ${messageOf(failures[0])}`);
}
