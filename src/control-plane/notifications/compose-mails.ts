/**
 * Composes mails from notifications that are due, and inserts them into the outbox (mail/store.ts).
 *
 * - One mail has the due notifications of one kind for one account, up to 20 of them.
 * - A critical notification of a kind that cannot be muted gets a mail of its own.
 * - An address gets at most five mails of a kind in a quarter of an hour. Further notifications wait, and go together
 *   in the next mail.
 */
import { rfc3339 } from '../../shared/clock.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { Mail } from '../mail/send-mails.ts';
import { countMail, type Mailbox } from '../mail/store.ts';
import {
  type Digest,
  holdBack,
  listDueDigests,
  lockAddressee,
  type MailedNotification,
  takeDigest,
} from './store.ts';

export interface ComposeParts {
  readonly db: Db;
  readonly mailbox: Mailbox;
  readonly public_url: string;
}

/** A mail contains so many notifications, and says how many more there are. */
const MAX_TOLD = 20;
/** How long the mail is tried: a mail server may be away for most of a day. */
const GOOD_FOR_S = 86_400;
const BATCH = 100;

/** Runs until no digest is due. */
export async function composeMails(parts: ComposeParts): Promise<void> {
  for (;;) {
    const due = await listDueDigests(parts.db, BATCH);
    for (const digest of due) await transaction(parts.db, (tx) => composeDigest(tx, parts, digest));
    if (due.length < BATCH) return;
  }
}

async function composeDigest(tx: Tx, { mailbox, public_url }: ComposeParts, digest: Digest): Promise<void> {
  const { user_id, kind } = digest;
  const to = await lockAddressee(tx, digest);
  if (to === undefined) return;
  const counted = await countMail(tx, to, kind);
  if ('free_in_s' in counted) return holdBack(tx, digest, counted.free_in_s);
  const { told, total } = await takeDigest(tx, digest, MAX_TOLD);
  if (total === 0) return;
  const letter = { ...mailOf(told, total, public_url), to, kind, ...counted };
  await mailbox.insert(tx, letter, GOOD_FOR_S, user_id);
}

function mailOf(
  told: readonly MailedNotification[],
  total: number,
  public_url: string,
): Pick<Mail, 'subject' | 'text'> {
  const title = told[0]?.title ?? '';
  const untold = total - told.length;
  return {
    subject: total === 1 ? title : `${title}, and ${total - 1} more`,
    text: [
      // The subject is the title of a single one.
      ...told.flatMap((each) => (total === 1 ? [] : [each.title]).concat(paragraph(each, public_url))),
      ...(untold === 0 ? [] : [`And ${untold} more: ${public_url}/notifications\n`]),
      `Choose which notifications are mailed to you: ${public_url}/notifications\n`,
    ].join('\n'),
  };
}

function paragraph({ body, count, raised_at }: MailedNotification, public_url: string): string {
  const times = count > 1 ? `, ${count} times so far` : '';
  return [body, '', `At ${rfc3339(raised_at)}${times}, on Berth at ${public_url}.`, ''].join('\n');
}
