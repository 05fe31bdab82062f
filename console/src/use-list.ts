/** A list of the API, page by page as somebody asks for more; looked at anew from its beginning. */
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { sayError } from './api.ts';
import { listen, type Told } from './live/streams.ts';

interface Page<T> {
  readonly data: readonly T[];
  readonly next_cursor: string | null;
}

/** What a question for a page of it says beside its own filters. */
export interface Position {
  readonly cursor?: string;
}

export interface List<T> {
  readonly data: readonly T[] | undefined;
  readonly error: string | null;
  readonly reload: () => Promise<void>;
  /** Undefined: there is no more. */
  readonly more: (() => Promise<void>) | undefined;
}

/**
 * @param key what the list is of; another one is another list
 * @param changes of what is told live, that which makes it another one
 */
export function useList<T>(
  key: string,
  ask: (position: Position) => Promise<Page<T>>,
  changes?: (told: Told) => boolean,
): List<T> {
  const [state, setState] = useState<{ key: string; page?: Page<T>; error: string | null }>({
    key,
    error: null,
  });
  const now = useRef({ ask, changes });
  now.current = { ask, changes };
  const take = useCallback(
    async (before: readonly T[], position: Position) => {
      try {
        const { data, next_cursor } = await now.current.ask(position);
        setState({ key, page: { data: [...before, ...data], next_cursor }, error: null });
      } catch (error) {
        setState((was) => ({ ...was, error: sayError(error) }));
      }
    },
    [key],
  );
  const reload = useCallback(() => take([], {}), [take]);
  useEffect(() => void reload(), [reload]);
  useEffect(
    () => listen((told) => void ((now.current.changes?.(told) || told.kind === 'reset') && reload())),
    [reload],
  );

  const page = state.key === key ? state.page : undefined;
  const cursor = page?.next_cursor ?? null;
  const more = page && cursor !== null ? () => take(page.data, { cursor }) : undefined;
  return { data: page?.data, error: state.error, reload, more };
}
