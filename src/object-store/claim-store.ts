/**
 * Makes sure that the object store of the settings is this installation's: it has the mark that the database names, or is
 * given it, once. A store of before marks were made is claimed by who comes first.
 *
 * The name is recorded before the mark is written, and that it was written after that: killed between, the next one goes on.
 */
import { randomUUID } from 'node:crypto';
import type { ObjectStore } from './object-store.ts';
import { MarkedStore, otherStore, readMark, unmarkedStore, writeMark } from './store-mark.ts';

/** What the installation knows of its mark. */
export interface KnownMarks {
  /** The name that its mark has, which is `id` if it had none; and whether the mark was written. */
  readonly intend: (id: string) => Promise<{ readonly id: string; readonly marked: boolean }>;
  readonly record: (id: string) => Promise<void>;
}

/** @throws WrongStoreError, ObjectStoreUnavailableError */
export async function claimStore(known: KnownMarks, store: ObjectStore): Promise<void> {
  const there = await readMark(store);
  const { id, marked } = await known.intend(randomUUID());
  if (there !== null && there !== id) throw otherStore(store);
  if (there === null && marked) throw unmarkedStore(store);
  if (there === null) await writeMark(store, id);
  if (!marked) await known.record(id);
}

/** The store as whoever has the database uses it. */
export function ownStore(known: KnownMarks, store: ObjectStore): MarkedStore {
  return new MarkedStore(store, () => claimStore(known, store));
}
