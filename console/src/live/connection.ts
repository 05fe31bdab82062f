/**
 * Detects whether the server answers. Every request reports its outcome here. When a request got no answer, or when no
 * answer has come for some seconds, this module requests /healthz. If that fails too, the connection is lost, and
 * /healthz is requested until the server answers. Then the pages read their data again (`onReconnect`).
 *
 *   connected ── no answer to a request, or silence; /healthz fails too ──▶ lost ── an answer ──▶ connected
 */
import { signal } from '@preact/signals';

/** Since when the connection is lost: the time of the last answer. Null: connected. */
export const lost_since_ms = signal<number | null>(null);

const PROBE_TIMEOUT_MS = 4_000;
/** A server that hangs refuses nothing: only its silence shows it. With the probe's timeout this is how long it goes unseen. */
const SILENCE_MS = 5_000;
const LOOK_EVERY_MS = 1_000;
const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 8_000;
/** What a proxy in front of the server answers in its place. */
const OF_GATEWAYS: readonly number[] = [502, 503, 504];

let answered_at_ms = Date.now();
let probing = false;
let timer: ReturnType<typeof setTimeout> | undefined;
let pause_ms = FIRST_PAUSE_MS;
const listeners = new Set<() => void>();

/** Calls the listener each time the connection is back. @returns a function that stops it */
export function onReconnect(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** To be called with each response. */
export function noteResponse({ status, headers }: Response): void {
  const is_json = headers.get('content-type')?.includes('json') ?? false;
  if (OF_GATEWAYS.includes(status) && !is_json) noteNoAnswer();
  else noteAnswer();
}

/** To be called if a request got no response. */
export function noteNoAnswer(): void {
  if (!probing && lost_since_ms.value === null) void probe();
}

/** Notices a server that no longer answers, until `stop` aborts. A hidden page asks nothing. */
export function watchConnection(stop: AbortSignal): void {
  const timer = setInterval(() => {
    const is_silent = Date.now() - answered_at_ms > SILENCE_MS;
    if (is_silent && !document.hidden && lost_since_ms.value === null) void probe();
  }, LOOK_EVERY_MS);
  stop.addEventListener('abort', () => clearInterval(timer));
}

function noteAnswer(): void {
  answered_at_ms = Date.now();
  if (lost_since_ms.value === null) return;
  clearTimeout(timer);
  lost_since_ms.value = null;
  for (const each of listeners) each();
}

async function probe(): Promise<void> {
  if (probing) return;
  clearTimeout(timer);
  probing = true;
  const is_alive = await isAlive();
  probing = false;
  if (is_alive) return noteAnswer();
  if (lost_since_ms.value === null) {
    lost_since_ms.value = answered_at_ms;
    pause_ms = FIRST_PAUSE_MS;
  }
  timer = setTimeout(() => void probe(), pause_ms);
  pause_ms = Math.min(MAX_PAUSE_MS, pause_ms * 2);
}

async function isAlive(): Promise<boolean> {
  try {
    const { ok } = await fetch('/healthz', {
      cache: 'no-store',
      signal: AbortSignal.timeout(PROBE_TIMEOUT_MS),
    });
    return ok;
  } catch {
    return false;
  }
}

// The browser knows of its network first.
addEventListener('offline', () => void probe());
addEventListener('online', () => void probe());
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && lost_since_ms.value !== null) void probe();
});
