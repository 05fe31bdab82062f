/** A list of the API, page by page as somebody asks for more; looked at anew as far as it is shown. */
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
  /** `rows`: how many somebody has asked for. */
  const now = useRef({ key, ask, changes, rows: 0 });
  now.current = { key, ask, changes, rows: now.current.key === key ? now.current.rows : 0 };
  const turns = useRef({ asked: 0, answered: 0 });
  /** What another list, or a later question, has overtaken is dropped. */
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
    () => listen((told) => void ((now.current.changes?.(told) || told.kind === 'reset') && reload())),
    [reload],
  );

  const page = state.key === key ? state.page : undefined;
  const readMore = (shown: Page<T>) => {
    now.current.rows = shown.data.length + 1;
    // What is being read anew may know of changes that these rows do not.
    const { asked, answered } = turns.current;
    return asked > answered ? reload() : read(shown);
  };
  const more = page && page.next_cursor !== null ? () => readMore(page) : undefined;
  return { data: page?.data, error: state.key === key ? state.error : null, reload, more };
}
