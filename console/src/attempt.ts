import { sayError } from './api.ts';
import { SudoRefused } from './sudo-request.ts';
import { tell } from './ui/toasts.tsx';

/** For what has no place of its own to say what went wrong: it is told at the page's edge. */
export async function attempt(work: () => unknown): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof SudoRefused)) tell('bad', sayError(error));
  }
}
