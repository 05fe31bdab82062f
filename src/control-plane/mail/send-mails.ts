/**
 * Sends the mails of the outbox (store.ts), as files in a folder or by SMTP. Mails are sent after the commit of the
 * change that inserted them, never in a request.
 *
 *   waiting ── lease ──▶ sending ── delivered, expired or token invalid ──▶ deleted
 *      ▲                    │
 *      └──── backoff ── failed
 *
 * If a process dies while it sends a mail, the mail's lease expires. Then the mail is sent again with the same
 * Message-ID.
 */
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { Db } from '../db/pool.ts';
import {
  deleteMail,
  isTokenGood,
  type Letter,
  type Mailbox,
  onPosted,
  postponeMail,
  recountMail,
  takeMails,
  type WaitingMail,
} from './store.ts';

export interface SendingParts {
  readonly db: Db;
  readonly mailbox: Mailbox;
  readonly deliver: Deliver;
  readonly log: Log;
}

const CONCURRENT_MAX = 10;
/** While deliveries are under way: for mails whose backoff ends, and mails of other processes. */
const POLL_MS = 5_000;
/** Longer than a delivery takes. */
const LEASE_S = 300;
/** Greylisting servers accept a mail some minutes after they refused it. */
const BACKOFF_MS = { first: 2_000, most: 3_600_000 };
/** A mail with less time left is not tried again: its reader could not use it. */
const LAST_TRY_MS = 60_000;

/** Runs until no mail is due and none is under way. A delivery that hangs holds up no other mail, and no new one. */
export async function sendMails(parts: SendingParts, signal?: AbortSignal): Promise<void> {
  const under_way = new Set<Promise<void>>();
  const start = (mail: WaitingMail): void => {
    const sending: Promise<void> = sendLogged(parts, mail).finally(() => under_way.delete(sending));
    under_way.add(sending);
  };
  try {
    for (;;) {
      const woken = new AbortController();
      // Subscribed before the look: a mail that is posted in between is not missed.
      const unsubscribe = onPosted(() => woken.abort());
      try {
        const free = signal?.aborted === true ? 0 : CONCURRENT_MAX - under_way.size;
        if (free > 0) for (const mail of await takeMails(parts.db, free, LEASE_S)) start(mail);
        if (under_way.size === 0) return;
        await Promise.race([...under_way, pause(POLL_MS, woken.signal)]);
      } finally {
        unsubscribe();
        woken.abort();
      }
    }
  } finally {
    await Promise.all(under_way);
  }
}

/** Never rejects: if the outcome cannot be stored, the mail is taken again once its lease is over. */
async function sendLogged(parts: SendingParts, mail: WaitingMail): Promise<void> {
  try {
    await send(parts, mail);
  } catch (error) {
    parts.log.warn({ err: error, mail_id: mail.id }, "a mail's outcome could not be stored");
  }
}

async function send(parts: SendingParts, waiting: WaitingMail): Promise<void> {
  const { db, log } = parts;
  const { id, attempts, good_for_ms } = waiting;
  try {
    const sent = await deliverIfNeeded(parts, waiting);
    if (sent && attempts > 1) await recountMail(db, sent.to, sent.kind, sent.counted_at);
  } catch (error) {
    const retry = good_for_ms > LAST_TRY_MS;
    const message = retry ? 'a mail could not be sent' : 'a mail could not be sent and is given up';
    log.warn({ reason: messageOf(error), mail_id: id, attempts }, message);
    if (retry) {
      // Half of the time left at most: the backoff can be as long as a token is valid.
      const wait_ms = Math.min(backoffMs(attempts - 1, BACKOFF_MS.first, BACKOFF_MS.most), good_for_ms / 2);
      return postponeMail(db, waiting, wait_ms);
    }
  }
  await deleteMail(db, waiting);
}

/** Returns null if the mail is no longer needed. */
async function deliverIfNeeded(
  { db, mailbox, deliver, log }: SendingParts,
  { id, content, good_for_ms }: WaitingMail,
): Promise<Letter | null> {
  if (good_for_ms <= 0) throw new Error('it has expired');
  const letter = mailbox.open(id, content);
  if (!letter) throw new Error('it does not open with the root key');
  const { to, subject, text, token } = letter;
  if (token !== undefined && !(await isTokenGood(db, Buffer.from(token, 'hex')))) {
    log.info({ mail_id: id }, 'a mail is not sent: its token is no longer valid');
    return null;
  }
  await deliver({ id, to, subject, text });
  return letter;
}

// Delivers a mail: as a file in the folder `mail/` (one .eml each), or by SMTP.

export interface Mail {
  readonly to: string;
  readonly subject: string;
  /** Plain text. */
  readonly text: string;
}

/** Each try of a mail has the same id. */
export type SentMail = Mail & { readonly id: string };

/** Tries to send a mail, once. */
export type Deliver = (mail: SentMail) => Promise<void>;

/** How long a server may be silent: until it accepts the connection, until its greeting, and between two answers. */
export type SmtpTimeouts = typeof SMTP_TIMEOUTS;
const SMTP_TIMEOUTS = { connectionTimeout: 10_000, greetingTimeout: 10_000, socketTimeout: 30_000 };
const FROM_NAME = 'Berth';

/** `smtp_url` null: messages become files in `folder`, readable by its owner only: they hold single-use tokens. */
export function createDeliver(options: {
  smtp_url: string | null;
  folder: string;
  from: string;
  timeouts?: SmtpTimeouts;
}): Deliver {
  return options.smtp_url === null
    ? intoFolder(options.folder, options.from)
    : bySmtp(options.smtp_url, options.from, options.timeouts ?? SMTP_TIMEOUTS);
}

function intoFolder(folder: string, from: string): Deliver {
  return async (mail) => {
    // Composes the message only. Loaded with the first mail: most starts send none.
    const { createTransport } = await import('nodemailer');
    const composer = createTransport({ streamTransport: true, buffer: true, newline: 'unix' });
    const { message } = await composer.sendMail(headed(mail, from));
    const name = `${mail.id}.eml`;
    const write = () => writeFile(join(folder, `.${name}`), message as Buffer, { mode: 0o600, flush: true });
    await write().catch(async (error: unknown) => {
      if (errnoOf(error) !== 'ENOENT') throw error;
      await mkdir(folder, { recursive: true, mode: 0o700 });
      await write();
    });
    await rename(join(folder, `.${name}`), join(folder, name));
  };
}

function bySmtp(smtp_url: string, from: string, timeouts: SmtpTimeouts): Deliver {
  return async (mail) => {
    const { createTransport } = await import('nodemailer');
    // In the first argument: the second one would be headers of every message.
    await createTransport({ url: smtp_url, ...timeouts }).sendMail(headed(mail, from));
  };
}

function headed({ to, subject, text, id }: SentMail, from: string) {
  const domain = from.slice(from.lastIndexOf('@') + 1);
  // A text would be parsed as a list: a comma or a < in the address would send the mail elsewhere.
  const whole = { name: '', address: to };
  return { from: `${FROM_NAME} <${from}>`, to: whole, subject, text, messageId: `<${id}@${domain}>` };
}
