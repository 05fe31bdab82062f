/**
 * Background tasks: each takes no input, re-reads the world, and may run in any number of processes at once.
 * They are woken by a timer, and some by a notification as well.
 */
import type { NotifyHub, Topic } from '../db/notify.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import type { Log } from '../lib/log.ts';

export interface Task {
  readonly name: string;
  readonly every_ms: number;
  readonly wake_on?: Topic;
  /** A signal of this process that wakes it too; returns the undoing. */
  readonly wake_by?: (wake: () => void) => () => void;
  /** Runs begin at least so far apart, however often it is woken: what comes in between goes together. */
  readonly gap_ms?: number;
  /** The same while it is woken during its runs: each run costs, and more goes together. Default: `gap_ms`. */
  readonly busy_gap_ms?: number;
  readonly run: () => Promise<void>;
}

/** Runs the tasks until `signal` aborts; resolves when all of them have ended. A failure is logged and tried again. */
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
    // Before the run: what comes while it runs is not missed.
    const woken = wakeUps(task, hub);
    try {
      await task.run();
      failures = 0;
    } catch (error) {
      log.warn({ err: error, task: task.name }, 'task failed');
      wait_ms = backoffMs(failures++, 200, task.every_ms);
    }
    const gap_ms = (woken.signal.aborted ? task.busy_gap_ms : undefined) ?? task.gap_ms ?? 0;
    await pause(wait_ms, AbortSignal.any([signal, woken.signal]));
    woken.unsubscribe();
    const early_ms = began_ms + gap_ms - performance.now();
    if (early_ms > 0) await pause(early_ms, signal);
  }
}

/** A reason of our own: the default is an error with a stack, made at every call. */
const WOKEN = 'woken';

function wakeUps(
  { wake_on, wake_by }: Task,
  hub: NotifyHub,
): { readonly signal: AbortSignal; readonly unsubscribe: () => void } {
  const woken = new AbortController();
  const wake = () => woken.abort(WOKEN);
  const undo = [
    ...(wake_on === undefined ? [] : [hub.subscribe(wake_on, '', wake)]),
    ...(wake_by === undefined ? [] : [wake_by(wake)]),
  ];
  return {
    signal: woken.signal,
    unsubscribe: () => {
      for (const each of undo) each();
    },
  };
}
