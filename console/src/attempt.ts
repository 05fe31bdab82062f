import { sayError } from './api.ts';
import { SudoRefused } from './sudo-request.ts';
import { tell } from './ui/toasts.tsx';

/** Runs an action that has no place for its error; shows the error as a toast. */
export async function attempt(work: () => unknown): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof SudoRefused)) tell('bad', sayError(error));
  }
}
