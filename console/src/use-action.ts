/** An action of the user: one at a time, with its error shown in place. */
import { useState } from 'preact/hooks';
import { fieldIssues, sayError } from './api.ts';
import { SudoRefused } from './sudo-request.ts';

export interface Action<A extends readonly unknown[]> {
  readonly run: (...args: A) => Promise<boolean>;
  readonly busy: boolean;
  readonly error: string | null;
  /** By the name of the field. */
  readonly issues: Readonly<Record<string, string>>;
  readonly clear: () => void;
}

const NOTHING = { error: null, issues: {} } as const;

/** @param say the text shown for a failure */
export function useAction<A extends readonly unknown[]>(
  work: (...args: A) => Promise<void>,
  say: (error: unknown) => string = sayError,
): Action<A> {
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState<{ error: string | null; issues: Readonly<Record<string, string>> }>(
    NOTHING,
  );
  const run = async (...args: A): Promise<boolean> => {
    if (busy) return false;
    setBusy(true);
    setWrong(NOTHING);
    try {
      await work(...args);
      return true;
    } catch (error) {
      if (!(error instanceof SudoRefused)) setWrong({ error: say(error), issues: fieldIssues(error) });
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { run, busy, ...wrong, clear: () => setWrong(NOTHING) };
}
