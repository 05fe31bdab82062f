/** How many notifications are unread, and news of those that should not wait until somebody looks. */
import { signal } from '@preact/signals';
import { tell } from '../ui/toasts.tsx';
import { listen } from './streams.ts';

export const unread = signal(0);

/** Until the signal says so. */
export function runUnread(stop: AbortSignal): void {
  const ended = listen((told) => {
    if (told.kind === 'unread') unread.value = told.count;
    if (told.kind !== 'notification') return;
    const { severity, title } = told.notification;
    if (severity !== 'info') tell(severity === 'critical' ? 'bad' : 'news', title, '/notifications');
  });
  stop.addEventListener('abort', ended);
}
