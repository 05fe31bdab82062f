/**
 * The installation's secret key, as its database knows it: by a value that is derived from the key. The first control plane that
 * starts on a database writes it. Another key would open no disk and no second factor, break the audit log's chains, and seal
 * new data that the other control planes cannot open.
 */
import { timingSafeEqual } from 'node:crypto';
import type { Tx } from '../db/pool.ts';
import { deriveKey } from '../lib/seal.ts';
import { findKeyCheck, keepKeyCheck } from './installation-store.ts';

const checkOf = (secret_key: Uint8Array) => deriveKey(secret_key, 'berth key check v1');

/** Whether the database is this key's. A database without a key becomes this key's. */
export async function claimForKey(tx: Tx, secret_key: Uint8Array): Promise<boolean> {
  const check = checkOf(secret_key);
  return timingSafeEqual(await keepKeyCheck(tx, check), check);
}

/** The same, but changes nothing. */
export async function fitsKey(tx: Tx, secret_key: Uint8Array): Promise<boolean> {
  const kept = await findKeyCheck(tx);
  return kept === undefined || timingSafeEqual(kept, checkOf(secret_key));
}
