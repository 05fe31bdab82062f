/**
 * Reads and sets which kinds of notifications a user gets by mail (all that the user has not muted), and marks
 * notifications as read.
 */
import { parseTime } from '../../shared/clock.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { isId, type NotificationId, type UserId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { isMutable, KIND_NAMES, type NotificationKind } from './model.ts';
import {
  listPreferences,
  markAll,
  markOne,
  type NotificationReader,
  type NotificationRow,
  type ReadUpTo,
  replacePreferences,
} from './store.ts';

export interface Preferences {
  readonly mail: Record<NotificationKind, boolean>;
  /** Kinds that cannot be muted: of security, or with another mail. */
  readonly always: NotificationKind[];
}

export async function readPreferences(tx: Tx, user_id: UserId): Promise<Preferences> {
  const said = await listPreferences(tx, user_id);
  const mail = KIND_NAMES.map((kind) => [kind, !isMutable(kind) || (said.get(kind) ?? true)] as const);
  return {
    mail: Object.fromEntries(mail) as Record<NotificationKind, boolean>,
    always: KIND_NAMES.filter((kind) => !isMutable(kind)),
  };
}

/** Replaces all preferences; a kind that is not named gets its default. @throws AppError INVALID_REQUEST for a kind that cannot be muted */
export async function setPreferences(
  tx: Tx,
  user_id: UserId,
  wanted: Partial<Record<NotificationKind, boolean>>,
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

/**
 * Marks a notification as read or unread, and notifies the reader's streams. Not audited, because it concerns only the reader.
 * @throws AppError NOT_FOUND, also for a notification of another reader
 */
export async function markRead(
  db: Db,
  reader: NotificationReader,
  id: NotificationId,
  read: boolean,
): Promise<NotificationRow> {
  return transaction(db, async (tx) => {
    const row = await markOne(tx, reader, id, read);
    if (!row) throw new AppError('NOT_FOUND');
    await notify(tx, 'notifications', reader.recipient);
    return row;
  });
}

/** Marks notifications as read, and returns how many it marked. */
export async function markAllRead(db: Db, reader: NotificationReader, up_to: ReadUpTo): Promise<number> {
  return transaction(db, async (tx) => {
    const count = await markAll(tx, reader, up_to);
    if (count > 0) await notify(tx, 'notifications', reader.recipient);
    return count;
  });
}

/** Parses an id or a time. @throws AppError INVALID_REQUEST */
export function readUpTo(before: string | undefined): ReadUpTo {
  if (before === undefined) return null;
  if (isId('ntf', before)) return { id: before };
  const time = parseTime(before);
  if (time === null) {
    throw invalid('before', 'must be the id of a notification or a time (RFC 3339)');
  }
  return { time };
}
