import { exitWithParent } from '../supervise.ts';

/** Aborts on a signal, or when the launcher that started this process is gone. */
export function shutdownSignal(): AbortSignal {
  const controller = new AbortController();
  const end = () => controller.abort(new Error('shutting down'));
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, end);
  exitWithParent(end);
  return controller.signal;
}

export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}
