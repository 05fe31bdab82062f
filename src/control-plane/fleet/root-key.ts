/**
 * Makes and opens the root key: 32 random bytes, from which every other key of the installation is derived. The
 * database has the root key sealed with the secret key (BERTH_SECRET_KEY), which seals nothing else. So a new secret
 * key changes one row (ADR 48):
 *
 *   one secret key ── addSecretKey ──▶ old and new ── forgetSecretKey('old') ──▶ the new one alone
 *                                          └───────── forgetSecretKey('new') ──▶ the old one alone
 *
 * A control plane needs the secret key only at its start. Invariants: the root key never changes; at each step, the
 * database has a copy that a secret key of the settings opens.
 */
import { randomBytes } from 'node:crypto';
import { present } from '../../shared/assert.ts';
import { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import {
  findRootKeyCopies,
  insertRootKey,
  lockRootKeyCopies,
  type RootKeyCopies,
  updateRootKeyCopies,
} from './control-plane-store.ts';

const BOUND_TO = 'root key';

/** Of two secret keys. A lone one is `old`. */
export type WhichKey = 'old' | 'new';

/** The root key, which the first start on a database makes; null: the database has another secret key. */
export async function claimRootKey(
  tx: Tx,
  secret_key: Uint8Array,
  made: Uint8Array = randomBytes(32),
): Promise<Buffer | null> {
  await insertRootKey(tx, sealed(made, secret_key));
  return (await findRootKey(tx, secret_key)) ?? null;
}

/** The same, but changes nothing. Undefined: Berth has never started on this database. */
export async function findRootKey(tx: Tx, secret_key: Uint8Array): Promise<Buffer | null | undefined> {
  const copies = await findRootKeyCopies(tx);
  return copies && (opened(copies, secret_key)?.root_key ?? null);
}

/**
 * From now on `added` opens the root key, too. `known`: it does already, as the new key. `same`: it is the present key.
 * `another`: there is a new key already, and it is another one. Runs in a transaction.
 */
export async function addSecretKey(
  tx: Tx,
  secret_key: Uint8Array,
  added: Uint8Array,
): Promise<'added' | 'known' | 'same' | 'another'> {
  if (Buffer.compare(secret_key, added) === 0) return 'same';
  const copies = present(await lockRootKeyCopies(tx), 'the row of the installation');
  const { root_key } = present(opened(copies, secret_key), 'the copy of the present key');
  if (opened(copies, added)?.which === 'new') return 'known';
  if (copies.new_root_key !== null) return 'another';
  await updateRootKeyCopies(tx, { root_key: copies.root_key, new_root_key: sealed(root_key, added) });
  return 'added';
}

/**
 * From now on only `secret_key` opens the root key. `none`: it is the only one already. `present`: it is itself the one to forget.
 * Runs in a transaction.
 */
export async function forgetSecretKey(
  tx: Tx,
  secret_key: Uint8Array,
  forgotten: WhichKey,
): Promise<'forgotten' | 'none' | 'present'> {
  const copies = present(await lockRootKeyCopies(tx), 'the row of the installation');
  if (copies.new_root_key === null) return 'none';
  const { which } = present(opened(copies, secret_key), 'the copy of the present key');
  if (which === forgotten) return 'present';
  const kept = which === 'new' ? copies.new_root_key : copies.root_key;
  await updateRootKeyCopies(tx, { root_key: kept, new_root_key: null });
  return 'forgotten';
}

function sealerOf(secret_key: Uint8Array): Sealer {
  return new Sealer(secret_key, 'berth root key v1');
}

function sealed(root_key: Uint8Array, secret_key: Uint8Array): Buffer {
  return sealerOf(secret_key).seal(Buffer.from(root_key).toString('base64'), BOUND_TO);
}

function opened(
  { root_key, new_root_key }: RootKeyCopies,
  secret_key: Uint8Array,
): { readonly root_key: Buffer; readonly which: WhichKey } | null {
  const sealer = sealerOf(secret_key);
  const copies = [
    ['old', root_key],
    ['new', new_root_key],
  ] as const;
  for (const [which, copy] of copies) {
    const text = copy && sealer.open(copy, BOUND_TO);
    if (text !== null) return { root_key: Buffer.from(text, 'base64'), which };
  }
  return null;
}
