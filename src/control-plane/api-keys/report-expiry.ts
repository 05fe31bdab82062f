import { type Db, transaction } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { apiKeyView } from './model.ts';
import { takeExpiring } from './store.ts';

const TOLD_BEFORE_DAYS = 7;
const BATCH = 100;

/** Raises an event for every key that expires within seven days, once per expiry. */
export async function reportExpiry(db: Db): Promise<void> {
  for (;;) {
    const told = await transaction(db, async (tx) => {
      const rows = await takeExpiring(tx, TOLD_BEFORE_DAYS, BATCH);
      for (const { org_id, user_id, ...row } of rows) {
        const data = { api_key: apiKeyView(row) };
        await appendPrivate(tx, { type: 'api_key.expiring', org_id, user_id, data, actor: 'system' });
      }
      return rows.length;
    });
    if (told < BATCH) return;
  }
}
