/** Marks notifications as read, and notifies the reader's streams. Not audited: it concerns only the reader. */

import { AppError, invalid } from '../../shared/errors.ts';
import { isId, type NotificationId } from '../../shared/ids.ts';
import { parseTime } from '../../shared/rfc3339.ts';
import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { markAll, markOne, type NotificationRow, type Reader, type ReadUpTo } from './store.ts';

/** @throws AppError NOT_FOUND, also for a notification of another reader */
export async function markRead(
  db: Db,
  reader: Reader,
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

/** Returns how many it marked. */
export async function markAllRead(db: Db, reader: Reader, up_to: ReadUpTo): Promise<number> {
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
