import { randomBytes } from 'node:crypto';
import type { ObjectStore } from './object-store.ts';

const PREFIX = 'probe/';

/** The time of the store's clock, which dates objects. It may differ from this machine's. */
export async function storeTime(store: ObjectStore): Promise<Date> {
  const key = `${PREFIX}${randomBytes(12).toString('hex')}`;
  try {
    await store.put(key, [Buffer.from('now')]);
    for await (const entry of store.list(PREFIX)) if (entry.key === key) return entry.modified_at;
    throw new Error(`${store.description}: an object just written is not listed`);
  } finally {
    await store.delete(key);
  }
}
