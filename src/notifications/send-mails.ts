/**
 * Sends the mails that notifications have put into the outbox: after their commit, never in a request. Mails that
 * are out are taken off at once; a process that dies in between sends them again, under the same Message-IDs. What is due
 * to one person of one kind at one time is one mail: who makes a hundred keys gets few. What is critical for the security
 * of an account has a mail of its own each.
 */
import type { Db } from '../db/pool.ts';
import { backoffMs } from '../lib/backoff.ts';
import { rfc3339 } from '../lib/clock.ts';
import { messageOf } from '../lib/errors.ts';
import { inParallel } from '../lib/in-parallel.ts';
import type { Log } from '../lib/log.ts';
import type { Deliver, Mail } from '../mail/mailer.ts';
import { type DueMail, endMails, postponeMail, takeDueMails } from './mail-store.ts';
import { KINDS } from './model.ts';

/** Longer than the delivery of all that are taken together may take. */
const LEASE_S = 900;
/** With waits of up to an hour: a mail server may be away for most of a day. */
const MAX_ATTEMPTS = 24;

export interface MailParts {
  readonly db: Db;
  readonly deliver: Deliver;
  readonly public_url: string;
  readonly log: Log;
}

/** Taken together. */
const AT_ONCE = 100;
/** Mails that are under way. */
const SENT_AT_ONCE = 10;

/** Of one kind to one person: they go as one mail. */
type Digest = readonly [DueMail, ...DueMail[]];

/** Until none is due, or `signal` aborts. */
export async function sendNotificationMails(parts: MailParts, signal?: AbortSignal): Promise<void> {
  while (signal?.aborted !== true) {
    const due = await takeDueMails(parts.db, AT_ONCE, LEASE_S);
    if (due.length === 0) return;
    const digests = Map.groupBy(due.toSorted(byId), mailOf);
    await inParallel(digests.values(), SENT_AT_ONCE, (digest) =>
      send(parts, digest as [DueMail, ...DueMail[]]),
    );
  }
}

/** As they were raised. */
const byId = (a: DueMail, b: DueMail) => (a.notification_id < b.notification_id ? -1 : 1);

/** What is critical and cannot be muted is of security, and has a mail of its own each. */
function mailOf({ notification_id, email, kind }: DueMail): string {
  const { mail, severity } = KINDS[kind];
  return mail === 'always' && severity === 'critical' ? notification_id : JSON.stringify([email, kind]);
}

async function send({ db, deliver, public_url, log }: MailParts, digest: Digest): Promise<void> {
  const again: DueMail[] = [];
  try {
    await deliver(composeMail(digest, public_url));
  } catch (error) {
    const [{ notification_id, attempts }] = digest;
    log.warn({ reason: messageOf(error), notification_id, attempts }, 'a notification could not be mailed');
    again.push(...digest.filter((due) => due.attempts < MAX_ATTEMPTS));
  }
  for (const due of again) await postponeMail(db, due, backoffMs(due.attempts, 2_000, 3_600_000));
  await endMails(
    db,
    digest.filter((due) => !again.includes(due)),
  );
}

function composeMail(digest: Digest, public_url: string): Mail {
  const [{ email, title, notification_id, count }, ...others] = digest;
  return {
    to: email,
    subject: others.length === 0 ? title : `${title}, and ${others.length} more`,
    text: [
      // Of one alone the subject says it.
      ...digest.flatMap((due) => (others.length === 0 ? [] : [due.title]).concat(paragraph(due, public_url))),
      `What goes by mail: ${public_url}/notifications\n`,
    ].join('\n'),
    id: `${notification_id}.${count}`,
  };
}

function paragraph({ body, count, raised_at }: DueMail, public_url: string): string {
  const times = count > 1 ? `, ${count} times so far` : '';
  return [body, '', `At ${rfc3339(raised_at)}${times}, on Berth at ${public_url}.`, ''].join('\n');
}
