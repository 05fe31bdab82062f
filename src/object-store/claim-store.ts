/**
 * Makes sure that the configured object store belongs to this installation: it has the mark that the database names, or
 * gets it now, once.
 *
 * The database records the name before the mark is written, and the fact afterwards. So a killed process's claim is
 * continued by the next. The mark is read back before the fact is recorded: some S3 servers ignore `If-None-Match`, so that of
 * two installations that claim a bucket at the same moment both write, and the later mark counts.
 */
import { randomUUID } from 'node:crypto';
import { pause } from '../shared/backoff.ts';
import { FolderStore } from './folder-store.ts';
import type { ObjectStore } from './object-store.ts';
import { MarkedStore, otherStore, readMark, unmarkedStore, writeMark } from './store-mark.ts';

/** The database's record of the mark. */
export interface KnownMarks {
  /** Records `id` as the mark's name if there is none. Returns the name, and whether the mark was written. */
  readonly intend: (id: string) => Promise<{ readonly id: string; readonly marked: boolean }>;
  readonly record: (id: string) => Promise<void>;
}

/** Longer than the other installation takes from its look for a mark to its write. A folder has create-only writes. */
const settleMs = (store: ObjectStore) => (store instanceof FolderStore ? 0 : 2_000);

/** @throws WrongStoreError, ObjectStoreUnavailableError */
export async function claimStore(
  known: KnownMarks,
  store: ObjectStore,
  settle_ms = settleMs(store),
): Promise<void> {
  const there = await readMark(store);
  const { id, marked } = await known.intend(randomUUID());
  if (there !== null && there !== id) throw otherStore(store);
  if (there === null && marked) throw unmarkedStore(store);
  if (there === null) {
    await writeMark(store, id);
    await pause(settle_ms);
    if ((await readMark(store)) !== id) throw otherStore(store);
  }
  if (!marked) await known.record(id);
}

/** The store for processes with access to the database. */
export function ownStore(known: KnownMarks, store: ObjectStore): MarkedStore {
  return new MarkedStore(store, () => claimStore(known, store));
}
