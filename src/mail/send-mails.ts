/**
 * Sends the mails that wait: after their commit, never in a request. One that is out is taken off at once; a process that
 * dies in between sends it again, under the same Message-ID.
 */
import type { Db } from '../db/pool.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import { messageOf } from '../lib/errors.ts';
import type { Log } from '../lib/log.ts';
import { type Mailbox, onPosted } from './mailbox.ts';
import type { Deliver } from './mailer.ts';
import { endMail, isTokenGood, postponeMail, takeMails, type WaitingMail } from './store.ts';

export interface SendingParts {
  readonly db: Db;
  readonly mailbox: Mailbox;
  readonly deliver: Deliver;
  readonly log: Log;
}

/** Under way together. */
const AT_ONCE = 10;
/** Meanwhile what waits for its next try may be due, or what another process has posted. */
const LOOK_AGAIN_MS = 5_000;
/** Longer than a delivery takes. */
const LEASE_S = 300;
/** A mail server that puts off whom it does not know lets the same mail in some minutes later. */
const WAIT_MS = { first: 2_000, most: 3_600_000 };
/** Who gets it later has no time left to follow it. */
const LAST_TRY_MS = 60_000;

/** Until none is due, or `signal` aborts, and none is under way: one that hangs holds up no other, nor what is posted meanwhile. */
export async function sendMails(parts: SendingParts, signal?: AbortSignal): Promise<void> {
  const under_way = new Set<Promise<void>>();
  const begin = (mail: WaitingMail): void => {
    const sending: Promise<void> = sendLogged(parts, mail).finally(() => under_way.delete(sending));
    under_way.add(sending);
  };
  try {
    for (;;) {
      const look_again = new AbortController();
      // Before it is looked: what is posted after that is not missed.
      const undo = onPosted(() => look_again.abort());
      try {
        const places = signal?.aborted === true ? 0 : AT_ONCE - under_way.size;
        if (places > 0) for (const mail of await takeMails(parts.db, places, LEASE_S)) begin(mail);
        if (under_way.size === 0) return;
        await Promise.race([...under_way, pause(LOOK_AGAIN_MS, look_again.signal)]);
      } finally {
        undo();
        look_again.abort();
      }
    }
  } finally {
    await Promise.all(under_way);
  }
}

/** Never rejects: what the database could not be told of is taken again once its lease is over. */
async function sendLogged(parts: SendingParts, mail: WaitingMail): Promise<void> {
  try {
    await send(parts, mail);
  } catch (error) {
    parts.log.warn({ err: error, mail_id: mail.id }, 'what became of a mail could not be kept');
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
