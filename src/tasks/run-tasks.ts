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
    try {
      await task.run();
      failures = 0;
    } catch (error) {
      log.warn({ err: error, task: task.name }, 'task failed');
      wait_ms = backoffMs(failures++, 200, task.every_ms);
    }
    await pauseOrWake(task.wake_on, wait_ms, hub, signal);
  }
}

async function pauseOrWake(
  topic: Topic | undefined,
  wait_ms: number,
  hub: NotifyHub,
  signal: AbortSignal,
): Promise<void> {
  const woken = new AbortController();
  const unsubscribe = topic === undefined ? () => undefined : hub.subscribe(topic, '', () => woken.abort());
  await pause(wait_ms, AbortSignal.any([signal, woken.signal]));
  unsubscribe();
}
