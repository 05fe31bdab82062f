/**
 * Requests for the user's password. Calls that need it wait here. The dialog (ui/sudo-dialog.tsx) is open while any call waits,
 * and answers all of them together.
 */
import { signal } from '@preact/signals';

/** The user closed the dialog. The action is cancelled, which is not a failure. */
export class SudoRefused extends Error {
  override readonly name = 'SudoRefused';
}

interface Waiting {
  readonly granted: () => void;
  readonly refused: (error: SudoRefused) => void;
}

export const sudo_waiting = signal<readonly Waiting[]>([]);

export function askForSudo(): Promise<void> {
  return new Promise((granted, refused) => {
    sudo_waiting.value = [...sudo_waiting.value, { granted, refused }];
  });
}

export function answerSudo(granted: boolean): void {
  const waiting = sudo_waiting.value;
  sudo_waiting.value = [];
  for (const each of waiting) {
    if (granted) each.granted();
    else each.refused(new SudoRefused('Not done: the password was not given.'));
  }
}
