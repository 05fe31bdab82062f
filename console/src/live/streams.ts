/**
 * Receives the server's streams of events and notifications, and passes each message to the listeners in all tabs. Also
 * keeps the number of unread notifications.
 *
 * A browser allows few connections to a host, and each stream holds one. So among a user's tabs of an organisation,
 * only the tab that holds a Web Lock reads the streams; it broadcasts the messages to the other tabs. When messages may
 * have been missed, the listeners get `reset` and read their data again.
 */

import { signal } from '@preact/signals';
import { BerthError, type Event, type Notification } from '../../../client/src/berth.ts';
import { berth, org_id } from '../api.ts';
import { session, user } from '../session.ts';
import { tell } from '../ui/toasts.tsx';
import { onReconnect } from './connection.ts';

export type LiveMessage =
  | { readonly kind: 'event'; readonly event: Event }
  | { readonly kind: 'notification'; readonly notification: Notification }
  | { readonly kind: 'unread'; readonly count: number }
  /** Messages may have been missed: reload. */
  | { readonly kind: 'reset' };

const listeners = new Set<(message: LiveMessage) => void>();
const AGAIN_MS = 5_000;

/** @returns a function that stops listening */
export function listen(listener: (message: LiveMessage) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function deliver(message: LiveMessage): void {
  for (const each of listeners) each(message);
}

/** Runs until the signal aborts. */
export function runStreams(signal: AbortSignal): void {
  const name = `berth-live ${user.value?.id} ${org_id.value}`;
  const tabs = new BroadcastChannel(name);
  tabs.onmessage = ({ data }) => deliver(data as LiveMessage);
  // The other tabs find out for themselves.
  const ended = onReconnect(() => deliver({ kind: 'reset' }));
  signal.addEventListener('abort', () => {
    ended();
    tabs.close();
  });
  const tell = (message: LiveMessage) => {
    if (signal.aborted) return;
    deliver(message);
    tabs.postMessage(message);
  };
  const read = () =>
    Promise.all([
      again(signal, tell, (onOpen) => readEvents(signal, tell, onOpen)),
      again(signal, tell, (onOpen) => readNotifications(signal, tell, onOpen)),
    ]);
  // A tab that takes over may have missed events.
  const lead = () => {
    tell({ kind: 'reset' });
    return read();
  };
  const reading = 'locks' in navigator ? navigator.locks.request(name, { signal }, lead) : lead();
  reading.catch(() => undefined);
}

/** The client reconnects by itself. It cannot renew an expired token; the next call does. */
async function again(
  signal: AbortSignal,
  tell: (message: LiveMessage) => void,
  read: (onOpen: () => void) => Promise<void>,
): Promise<void> {
  for (let ended = false; !signal.aborted && session.value === 'in'; ended = true) {
    try {
      // A new stream starts now: events since the end of the previous one are in neither.
      await read(() => ended && tell({ kind: 'reset' }));
    } catch (error) {
      const renewed = error instanceof BerthError && error.status === 401;
      if (signal.aborted) return;
      if (!renewed) await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      else await berth.call('getMe', {}).catch(() => undefined);
    }
  }
}

type Read = (signal: AbortSignal, tell: (message: LiveMessage) => void, onOpen: () => void) => Promise<void>;

const readEvents: Read = async (signal, tell, onOpen) => {
  const onReset = () => tell({ kind: 'reset' });
  for await (const event of berth.events({}, { signal, onOpen, onReset })) tell({ kind: 'event', event });
};

const readNotifications: Read = async (signal, tell, onOpen) => {
  for await (const { event, data } of berth.notifications({ signal, onOpen })) {
    if (event === 'notification') tell({ kind: 'notification', notification: data as Notification });
    else if (event === 'unread') tell({ kind: 'unread', count: (data as { count: number }).count });
    else tell({ kind: 'reset' });
  }
};

/** The number of unread notifications, and toasts for urgent ones. */
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
