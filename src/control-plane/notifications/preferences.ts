/** Which kinds of notifications a user gets by mail: all that the user has not muted. */

import { AppError } from '../../shared/errors.ts';
import type { UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { isMutable, KIND_NAMES, type Kind } from './model.ts';
import { listPreferences, replacePreferences } from './store.ts';

export interface Preferences {
  readonly mail: Record<Kind, boolean>;
  /** Kinds that cannot be muted: of security, or with another mail. */
  readonly always: Kind[];
}

export async function readPreferences(tx: Tx, user_id: UserId): Promise<Preferences> {
  const said = await listPreferences(tx, user_id);
  const mail = KIND_NAMES.map((kind) => [kind, !isMutable(kind) || (said.get(kind) ?? true)] as const);
  return {
    mail: Object.fromEntries(mail) as Record<Kind, boolean>,
    always: KIND_NAMES.filter((kind) => !isMutable(kind)),
  };
}

/** Replaces all preferences; a kind that is not named gets its default. @throws AppError INVALID_REQUEST for a kind that cannot be muted */
export async function setPreferences(
  tx: Tx,
  user_id: UserId,
  wanted: Partial<Record<Kind, boolean>>,
): Promise<Preferences> {
  const off = KIND_NAMES.filter((kind) => wanted[kind] === false);
  const muted = off.filter((kind) => !isMutable(kind));
  if (muted.length > 0) {
    throw new AppError('INVALID_REQUEST', {
      message: `mail: ${muted.join(', ')} cannot be muted`,
      details: muted.map((kind) => ({ field: `mail.${kind}`, issue: 'cannot be muted' })).slice(0, 10),
    });
  }
  await replacePreferences(
    tx,
    user_id,
    off.map((kind) => ({ kind, mail: false })),
  );
  return readPreferences(tx, user_id);
}
