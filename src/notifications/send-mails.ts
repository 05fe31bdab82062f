/**
 * Sends the mails that notifications have put into the outbox: after their commit, never in a request. Mails that
 * are out are taken off at once; a process that dies in between sends them again, under the same Message-IDs.
 */
import type { Db } from '../db/pool.ts';
import { backoffMs } from '../lib/backoff.ts';
import { rfc3339 } from '../lib/clock.ts';
import { messageOf } from '../lib/errors.ts';
import type { Log } from '../lib/log.ts';
import type { Deliver, Mail } from '../mail/mailer.ts';
import { type DueMail, endMails, postponeMail, takeDueMails } from './mail-store.ts';

/** Longer than one delivery may take. */
const LEASE_S = 300;
/** With waits of up to an hour: a mail server may be away for most of a day. */
const MAX_ATTEMPTS = 24;

export interface MailParts {
  readonly db: Db;
  readonly deliver: Deliver;
  readonly public_url: string;
  readonly log: Log;
}

/** Taken and sent together. */
const AT_ONCE = 10;

/** Until none is due, or `signal` aborts. */
export async function sendNotificationMails(parts: MailParts, signal?: AbortSignal): Promise<void> {
  while (signal?.aborted !== true) {
    const due = await takeDueMails(parts.db, AT_ONCE, LEASE_S);
    if (due.length === 0) return;
    const ended = await Promise.all(due.map((mail) => send(parts, mail)));
    await endMails(
      parts.db,
      due.filter((_, at) => ended[at]),
    );
  }
}

/** Whether there is nothing more to do for this mail. */
async function send({ db, deliver, public_url, log }: MailParts, due: DueMail): Promise<boolean> {
  try {
    await deliver(composeMail(due, public_url));
  } catch (error) {
    const { attempts, notification_id } = due;
    log.warn({ reason: messageOf(error), notification_id, attempts }, 'a notification could not be mailed');
    if (attempts < MAX_ATTEMPTS) {
      await postponeMail(db, due, backoffMs(attempts, 2_000, 3_600_000));
      return false;
    }
  }
  return true;
}

function composeMail({ email, title, body, count, raised_at, ...due }: DueMail, public_url: string): Mail {
  const times = count > 1 ? `, ${count} times so far` : '';
  return {
    to: email,
    subject: title,
    text: [
      body,
      '',
      `At ${rfc3339(raised_at)}${times}, on Berth at ${public_url}.`,
      '',
      `What goes by mail: ${public_url}/notifications`,
      '',
    ].join('\n'),
    id: `${due.notification_id}.${count}`,
  };
}
