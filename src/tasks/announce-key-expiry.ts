/** Appends an event for each API key that expires within seven days, once for each expiry. */
import { tellOfExpiry } from '../api-keys/tell-of-expiry.ts';
import type { Db } from '../db/pool.ts';

export async function announceKeyExpiry(db: Db): Promise<void> {
  await tellOfExpiry(db);
}
