/**
 * Sends the mails that wait: after their commit, never in a request. One that is out is taken off at once; a process that
 * dies in between sends it again, under the same Message-ID.
 */
import type { Db } from '../db/pool.ts';
import { backoffMs } from '../lib/backoff.ts';
import { messageOf } from '../lib/errors.ts';
import { inParallel } from '../lib/in-parallel.ts';
import type { Log } from '../lib/log.ts';
import type { Mailbox } from './mailbox.ts';
import type { Deliver } from './mailer.ts';
import { endMail, isTokenGood, postponeMail, takeMails, type WaitingMail } from './store.ts';

export interface SendingParts {
  readonly db: Db;
  readonly mailbox: Mailbox;
  readonly deliver: Deliver;
  readonly log: Log;
}

/** Taken together, and under way together. */
const AT_ONCE = 10;
/** Longer than a delivery takes. */
const LEASE_S = 300;
/** A mail server that puts off whom it does not know lets the same mail in some minutes later. */
const WAIT_MS = { first: 2_000, most: 3_600_000 };
/** Who gets it later has no time left to follow it. */
const LAST_TRY_MS = 60_000;

/** Until none is due, or `signal` aborts. */
export async function sendMails(parts: SendingParts, signal?: AbortSignal): Promise<void> {
  while (signal?.aborted !== true) {
    const due = await takeMails(parts.db, AT_ONCE, LEASE_S);
    if (due.length === 0) return;
    await inParallel(due, AT_ONCE, (mail) => send(parts, mail));
  }
}

async function send({ db, mailbox, deliver, log }: SendingParts, waiting: WaitingMail): Promise<void> {
  const { id, sealed, attempts, good_for_ms } = waiting;
  try {
    if (good_for_ms <= 0) throw new Error('nobody needs it any more');
    const mail = mailbox.open(id, sealed);
    if (!mail) throw new Error('it does not open: the secret key has changed');
    const { token, ...letter } = mail;
    const is_needed = token === undefined || (await isTokenGood(db, Buffer.from(token, 'hex')));
    if (is_needed) await deliver({ ...letter, id });
    else log.info({ mail_id: id }, 'a mail is not sent: its token does nothing any more');
  } catch (error) {
    const again = good_for_ms > LAST_TRY_MS;
    // Not past its time, nor just before it: a wait of its own may be as long as a token is good.
    const wait_ms = Math.min(backoffMs(attempts - 1, WAIT_MS.first, WAIT_MS.most), good_for_ms / 2);
    const what = again ? 'a mail could not be sent' : 'a mail could not be sent, and is given up';
    log.warn({ reason: messageOf(error), mail_id: id, attempts }, what);
    if (again) return postponeMail(db, waiting, wait_ms);
  }
  await endMail(db, waiting);
}
