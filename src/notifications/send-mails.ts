/**
 * Sends the mails that notifications have put into the outbox: after their commit, never in a request. Mails that
 * are out are taken off at once; a process that dies in between sends them again, under the same Message-IDs. What is due
 * to one person of one kind at one time is one mail of bounded size: who makes a hundred keys gets few. What is critical
 * for the security of an account has a mail of its own each. An address gets at most five mails of a kind in a quarter of an
 * hour; what is raised meanwhile waits until there may be one more, and goes together as that one.
 */
import type { Db } from '../db/pool.ts';
import { backoffMs } from '../lib/backoff.ts';
import { rfc3339 } from '../lib/clock.ts';
import { messageOf } from '../lib/errors.ts';
import { inParallel } from '../lib/in-parallel.ts';
import type { Log } from '../lib/log.ts';
import { countMail, uncountMail } from '../mail/count-store.ts';
import type { Deliver, SentMail } from '../mail/mailer.ts';
import {
  type DueMail,
  endMails,
  holdBackMail,
  MAX_TOLD,
  type MailedNotification,
  postponeMail,
  takeDueMails,
} from './mail-store.ts';

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

/** To one person of one kind: they go as one. What is mailed apart is one of its own. */
type Digest = readonly [DueMail, ...DueMail[]];

/** Until none is due, or `signal` aborts. */
export async function sendNotificationMails(parts: MailParts, signal?: AbortSignal): Promise<void> {
  while (signal?.aborted !== true) {
    const due = await takeDueMails(parts.db, AT_ONCE, LEASE_S);
    if (due.length === 0) return;
    const digests = Map.groupBy(due.toSorted(byFirst), ({ user_id, batch }) => `${user_id} ${batch}`);
    await inParallel(digests.values(), SENT_AT_ONCE, (digest) =>
      send(parts, digest as [DueMail, ...DueMail[]]),
    );
  }
}

/** As they were raised. */
const byFirst = (a: DueMail, b: DueMail) => (a.notifications[0].id < b.notifications[0].id ? -1 : 1);

async function send({ db, deliver, public_url, log }: MailParts, digest: Digest): Promise<void> {
  const [{ email, kind, notifications, attempts }] = digest;
  const counted = await countMail(db, email, kind);
  if ('free_in_s' in counted) {
    for (const due of digest) await holdBackMail(db, due, counted.free_in_s);
    return;
  }
  const again: DueMail[] = [];
  try {
    await deliver(composeMail(digest, public_url));
  } catch (error) {
    await uncountMail(db, email, kind, counted.counted_at);
    const notification_id = notifications[0].id;
    log.warn({ reason: messageOf(error), notification_id, attempts }, 'a notification could not be mailed');
    again.push(...digest.filter((due) => due.attempts < MAX_ATTEMPTS));
  }
  for (const due of again) await postponeMail(db, due, backoffMs(due.attempts, 2_000, 3_600_000));
  await endMails(
    db,
    digest.filter((due) => !again.includes(due)),
  );
}

function composeMail(digest: Digest, public_url: string): SentMail {
  const [{ email, notifications }] = digest;
  const [first] = notifications;
  // A repeat of the same may wait beside it.
  const all = [
    ...new Map(digest.flatMap((due) => due.notifications.map((each) => [each.id, each]))).values(),
  ];
  const told = all.slice(0, MAX_TOLD);
  const untold = digest.reduce((sum, { more }) => sum + more, all.length - told.length);
  const others = told.length - 1 + untold;
  return {
    to: email,
    subject: others === 0 ? first.title : `${first.title}, and ${others} more`,
    text: [
      // Of one alone the subject says it.
      ...told.flatMap((each) => (others === 0 ? [] : [each.title]).concat(paragraph(each, public_url))),
      ...(untold === 0 ? [] : [`And ${untold} more: ${public_url}/notifications\n`]),
      `What goes by mail: ${public_url}/notifications\n`,
    ].join('\n'),
    id: `${first.id}.${first.count}`,
  };
}

function paragraph({ body, count, raised_at }: MailedNotification, public_url: string): string {
  const times = count > 1 ? `, ${count} times so far` : '';
  return [body, '', `At ${rfc3339(raised_at)}${times}, on Berth at ${public_url}.`, ''].join('\n');
}
