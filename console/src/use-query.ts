/** A page's data, read when it opens and on refresh. The old data stays until the new arrives. */
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { sayError } from './api.ts';
import { onReconnect } from './live/connection.ts';

export interface Query<T> {
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
