import { sayError } from './api.ts';
import { SudoRefused } from './sudo-request.ts';
import { tell } from './ui/toasts.tsx';

/** For actions without a place for their error: it appears at the page's edge. */
export async function attempt(work: () => unknown): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof SudoRefused)) tell('bad', sayError(error));
  }
}
