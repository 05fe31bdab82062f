/** A list of the API, page by page as somebody asks for more; looked at anew from its beginning. */
import { useCallback, useEffect, useState } from 'preact/hooks';
import { sayError } from './api.ts';

interface Page<T> {
  readonly data: readonly T[];
  readonly next_cursor: string | null;
}

export interface List<T> {
  readonly data: readonly T[] | undefined;
  readonly error: string | null;
  readonly reload: () => Promise<void>;
  /** Undefined: there is no more. */
  readonly more: (() => Promise<void>) | undefined;
}

export function useList<T>(key: string, ask: (cursor: string | undefined) => Promise<Page<T>>): List<T> {
  const [state, setState] = useState<{ key: string; page?: Page<T>; error: string | null }>({
    key,
    error: null,
  });
  const reload = useCallback(async () => {
    try {
      const page = await ask(undefined);
      setState({ key, page, error: null });
    } catch (error) {
      setState((before) => ({ ...before, error: sayError(error) }));
    }
  }, [key]);
  useEffect(() => void reload(), [reload]);

  const page = state.key === key ? state.page : undefined;
  const cursor = page?.next_cursor ?? null;
  const more = async () => {
    if (!page || cursor === null) return;
    try {
      const next = await ask(cursor);
      setState({
        key,
        page: { data: [...page.data, ...next.data], next_cursor: next.next_cursor },
        error: null,
      });
    } catch (error) {
      setState((before) => ({ ...before, error: sayError(error) }));
    }
  };
  return { data: page?.data, error: state.error, reload, more: cursor === null ? undefined : more };
}
