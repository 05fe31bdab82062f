import { randomBytes } from 'node:crypto';
import type { ObjectStore } from './object-store.ts';

const PREFIX = 'probe/';

/** What time it is by the clock that says when an object was written. It need not be this machine's, nor near it. */
export async function storeTime(store: ObjectStore): Promise<Date> {
  const key = `${PREFIX}${randomBytes(12).toString('hex')}`;
  try {
    await store.put(key, [Buffer.from('now')]);
    for await (const entry of store.list(PREFIX)) if (entry.key === key) return entry.modified_at;
    throw new Error(`${store.description}: an object that was written just now is not listed`);
  } finally {
    await store.delete(key);
  }
}
