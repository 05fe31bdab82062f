/** The number of unread notifications, and toasts for urgent ones. */
import { signal } from '@preact/signals';
import { berth } from '../api.ts';
import { tell } from '../ui/toasts.tsx';
import { listen } from './streams.ts';

export const unread = signal(0);

/** Runs until `stop` aborts. */
export function runUnread(stop: AbortSignal): void {
  // Another tab may hold the stream, which sends the number only when it changes.
  const ask = async () => {
    const { count } = await berth.call('countUnreadNotifications', {}, { signal: stop });
    unread.value = count;
  };
  ask().catch(() => undefined);
  const ended = listen((message) => {
    if (message.kind === 'unread') unread.value = message.count;
    if (message.kind === 'reset') ask().catch(() => undefined);
    if (message.kind !== 'notification') return;
    const { severity, title } = message.notification;
    if (severity !== 'info') tell(severity === 'critical' ? 'bad' : 'news', title, '/notifications');
  });
  stop.addEventListener('abort', ended);
}
