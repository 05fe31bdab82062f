/**
 * Helpers for changes that a user makes by the API.
 *
 * - `useAction` runs one action at a time and keeps its error; `attempt` shows the error as a toast.
 * - `readThenChange` changes a resource with If-Match, and repeats that if somebody else has changed it meanwhile.
 * - `requireSeen` refuses to replace a value that differs from the one that the user saw.
 */
import { useState } from 'preact/hooks';
import { auditDetails } from '../../client/src/audit-words.ts';
import { BerthError, type CallOptions } from '../../client/src/berth.ts';
import { sayError } from './api.ts';
import { changedFields } from './instance/as-commands.ts';
import { SudoRefused } from './session.ts';
import { tell } from './ui/toasts.tsx';

interface Action<A extends readonly unknown[]> {
  readonly run: (...args: A) => Promise<boolean>;
  readonly busy: boolean;
  readonly error: string | null;
  readonly clear: () => void;
}

/** @param say the text shown for a failure */
export function useAction<A extends readonly unknown[]>(
  work: (...args: A) => Promise<void>,
  say: (error: unknown) => string = sayError,
): Action<A> {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const run = async (...args: A): Promise<boolean> => {
    if (busy) return false;
    setBusy(true);
    setError(null);
    try {
      await work(...args);
      return true;
    } catch (failure) {
      if (!(failure instanceof SudoRefused)) setError(say(failure));
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { run, busy, error, clear: () => setError(null) };
}

/** Runs an action that has no place for its error; shows the error as a toast. */
export async function attempt(work: () => unknown): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof SudoRefused)) tell('bad', sayError(error));
  }
}

/** Each attempt fails only if somebody else's change was made. */
const ATTEMPTS = 5;

/** Reads, and writes if there was no other write since; else again. @param write may throw to refuse what it got */
export async function readThenChange<T, R>(
  read: (options: CallOptions) => Promise<T>,
  write: (now: T, options: CallOptions) => Promise<R>,
): Promise<R> {
  for (let attempt = 1; ; attempt++) {
    let if_match: string | undefined;
    const onEtag = (etag: string) => {
      if_match = etag;
    };
    const now = await read({ onEtag });
    try {
      return await write(now, { if_match });
    } catch (error) {
      const is_stale = error instanceof BerthError && error.code === 'PRECONDITION_FAILED';
      if (!is_stale || attempt === ATTEMPTS) throw error;
    }
  }
}

/** What a change replaces must be as it was seen. @param onLost gets the present state before the error @throws Error */
export function requireSeen<T extends object>(
  now: T,
  seen: T,
  change: object,
  onLost: (now: T) => void,
): void {
  const replaced = Object.fromEntries(Object.entries(now).filter(([name]) => name in change));
  const lost = changedFields(replaced, seen);
  if (Object.keys(lost).length === 0) return;
  onLost(now);
  const words = auditDetails({ action: 'instance.change', data: { change: lost }, target_name: null });
  throw new Error(
    `Not saved: somebody else has changed the same meanwhile. Now: ${words}. Save again to replace that.`,
  );
}
