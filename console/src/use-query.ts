/** Hooks with which pages read from the API: one answer (`useQuery`), or a list page by page (`useList`). */
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { sayError } from './api.ts';
import { onReconnect } from './live/connection.ts';
import { type LiveMessage, listen } from './live/streams.ts';

interface Query<T> {
  readonly data: T | undefined;
  readonly error: string | null;
  readonly reload: () => Promise<void>;
  /** Shows this until the next reload. */
  readonly put: (data: T) => void;
}

/** @param key identifies the query; another key starts another query */
export function useQuery<T>(key: string, ask: (signal: AbortSignal) => Promise<T>): Query<T> {
  const [state, setState] = useState<{ key: string; data?: T; error: string | null }>({ key, error: null });
  const asked = useRef(ask);
  asked.current = ask;
  const running = useRef<AbortController | null>(null);

  const reload = useCallback(async () => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    try {
      const data = await asked.current(controller.signal);
      if (!controller.signal.aborted) setState({ key, data, error: null });
    } catch (error) {
      if (controller.signal.aborted) return;
      setState((before) => ({ ...(before.key === key ? before : { key }), error: sayError(error) }));
    }
  }, [key]);

  useEffect(() => {
    void reload();
    const ended = onReconnect(() => void reload());
    return () => {
      ended();
      running.current?.abort();
    };
  }, [reload]);

  const put = useCallback((data: T) => setState({ key, data, error: null }), [key]);
  const current = state.key === key;
  return { data: current ? state.data : undefined, error: current ? state.error : null, reload, put };
}

/** Reloads at an interval while the page is visible, for what changes without an event; null: never. */
export function useReloads(reload: () => Promise<void>, every_ms: number | null): void {
  useEffect(() => {
    if (every_ms === null) return;
    let ended = false;
    let timer: ReturnType<typeof setTimeout>;
    // Waits for the answer, however long it takes, because a new request aborts the previous one.
    const again = async () => {
      if (!document.hidden) await reload();
      if (!ended) timer = setTimeout(again, every_ms);
    };
    timer = setTimeout(again, every_ms);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [reload, every_ms]);
}

interface Page<T> {
  readonly data: readonly T[];
  readonly next_cursor: string | null;
}

/** The parameters of a page, beside the list's filters. */
interface Position {
  readonly cursor?: string;
}

export interface List<T> {
  readonly data: readonly T[] | undefined;
  readonly error: string | null;
  readonly reload: () => Promise<void>;
  /** Undefined: this is the last page. */
  readonly more: (() => Promise<void>) | undefined;
}

/**
 * A list of the API, page by page on request; a refresh reads the visible part again.
 * @param key identifies the list; another key starts another list
 * @param changes the live changes that make the list stale
 */
export function useList<T>(
  key: string,
  ask: (position: Position) => Promise<Page<T>>,
  changes?: (message: LiveMessage) => boolean,
): List<T> {
  const [state, setState] = useState<{ key: string; page?: Page<T>; error: string | null }>({
    key,
    error: null,
  });
  /** `rows`: the number of requested rows. */
  const now = useRef({ key, ask, changes, rows: 0 });
  now.current = { key, ask, changes, rows: now.current.key === key ? now.current.rows : 0 };
  const turns = useRef({ asked: 0, answered: 0 });
  /** An answer for another list, or older than a later request, is dropped. */
  const read = useCallback(
    async (before: Page<T>) => {
      const { ask: askNow, rows } = now.current;
      turns.current.asked += 1;
      const turn = turns.current.asked;
      const put: typeof setState = (next) => {
        if (now.current.key !== key || turn < turns.current.answered) return;
        turns.current.answered = turn;
        setState(next);
      };
      try {
        const data = [...before.data];
        let cursor = before.next_cursor;
        do {
          const page = await askNow(cursor === null ? {} : { cursor });
          data.push(...page.data);
          cursor = page.next_cursor;
        } while (cursor !== null && data.length < rows);
        put({ key, page: { data, next_cursor: cursor }, error: null });
      } catch (error) {
        put((was) => ({ ...(was.key === key ? was : { key }), error: sayError(error) }));
      }
    },
    [key],
  );
  const reload = useCallback(() => read({ data: [], next_cursor: null }), [read]);
  useEffect(() => void reload(), [reload]);
  useEffect(
    () =>
      listen((message) => void ((now.current.changes?.(message) || message.kind === 'reset') && reload())),
    [reload],
  );

  const page = state.key === key ? state.page : undefined;
  const readMore = (shown: Page<T>) => {
    now.current.rows = shown.data.length + 1;
    // The refresh under way may include changes that these rows lack.
    const { asked, answered } = turns.current;
    return asked > answered ? reload() : read(shown);
  };
  const more = page && page.next_cursor !== null ? () => readMore(page) : undefined;
  return { data: page?.data, error: state.key === key ? state.error : null, reload, more };
}
