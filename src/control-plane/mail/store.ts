/**
 * Keeps the outbox of all mails, and limits how many are sent.
 *
 * - A change inserts its mail in its own transaction. So no committed change loses its mail, and no mail announces a
 *   change that was rolled back.
 * - Mails are encrypted while they wait, because most contain a token.
 * - Mails of one kind to one address are limited, and so are the mails that an organisation's members send. The counts
 *   are in the database, so that all processes share them.
 */
import { sql } from 'kysely';
import { Signal } from '../../shared/concurrency.ts';
import { AppError } from '../../shared/errors.ts';
import { type MailId, newId, type OrgId, type UserId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import { afterCommit, type Tx } from '../db/pool.ts';
import type { Mail } from './send-mails.ts';

export interface NewMail {
  readonly id: MailId;
  readonly kind: string;
  readonly user_id: UserId | null;
  readonly content: Buffer;
}

async function insertMail(tx: Tx, mail: NewMail, good_for_s: number): Promise<void> {
  await tx
    .insertInto('mails')
    .values({ ...mail, expires_at: sql<Date>`now() + make_interval(secs => ${good_for_s})` })
    .execute();
}

export interface WaitingMail {
  readonly id: MailId;
  readonly content: Buffer;
  /** Tries, this one included. */
  readonly attempts: number;
  /** Identifies this lease: a process whose lease is over changes nothing. */
  readonly due_at: string;
  /** Until the mail expires; negative: it has. */
  readonly good_for_ms: number;
}

/** Leases up to `limit` due mails for `lease_s`, those first that have been due for longest. */
export async function takeMails(tx: Tx, limit: number, lease_s: number): Promise<readonly WaitingMail[]> {
  const { rows } = await sql<WaitingMail>`
    with due as (
      select id from mails where due_at <= now() order by due_at limit ${limit} for update skip locked
    )
    update mails m set attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => ${lease_s})
    from due where m.id = due.id
    returning m.id, m.content, m.attempts, m.due_at::text,
              (extract(epoch from m.expires_at - now()) * 1000)::float8 as good_for_ms`.execute(tx);
  return rows;
}

/** Whether the token of an invitation, a password reset or an address confirmation is still valid. */
export async function isTokenGood(tx: Tx, token_hash: Buffer): Promise<boolean> {
  const { rows } = await sql`
    select from invitations where token_hash = ${token_hash} and expires_at > now()
    union all
    select from mail_tokens where token_hash = ${token_hash} and expires_at > now()`.execute(tx);
  return rows.length > 0;
}

export async function countMails(tx: Tx): Promise<number> {
  const { count } = await tx
    .selectFrom('mails')
    .select((is) => is.fn.countAll<number>().as('count'))
    .executeTakeFirstOrThrow();
  return Number(count);
}

export interface MailCounts {
  readonly waiting: number;
  /** Of these, tried without success; each is tried again until it expires. */
  readonly failing: number;
}

export async function countMailsByState(tx: Tx): Promise<MailCounts> {
  const { rows } = await sql<MailCounts>`
    select count(*) as waiting, count(*) filter (where attempts > 0) as failing from mails`.execute(tx);
  return rows[0] ?? { waiting: 0, failing: 0 };
}

/** The mail was sent, or is given up. */
export async function deleteMail(tx: Tx, { id, due_at }: WaitingMail): Promise<void> {
  await sql`delete from mails where id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}

export async function postponeMail(tx: Tx, { id, due_at }: WaitingMail, wait_ms: number): Promise<void> {
  await sql`
    update mails set due_at = now() + make_interval(secs => ${wait_ms / 1000})
    where id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}

// Limits of mails. An address gets at most five mails of a kind in a quarter of an hour, counted over all senders. The members of
// an organisation can send a limited number to whomever they name, because all tenants share one mail server.

const MAX_MAILS = 5;
/** Of an organisation, to all addresses together. */
export const MAX_SENT = 200;
export const WINDOW_S = 900;

/** When the mail was counted, or in how many seconds the next one is allowed. */
export type MailCount = { readonly counted_at: string } | { readonly free_in_s: number };

const window = sql`make_interval(secs => ${sql.lit(WINDOW_S)})`;
const recent = sql`select t from unnest(c.sent_at) as t where t > now() - ${window} order by t`;

/** Counts one mail of an organisation. */
function countSent(tx: Tx, from: OrgId): Promise<MailCount> {
  return countMail(tx, from, 'sent', MAX_SENT);
}

/** Counts one mail. Other transactions that count the same address and kind wait until this one ends. */
export async function countMail(tx: Tx, email: string, kind: string, most = MAX_MAILS): Promise<MailCount> {
  const address = email.toLowerCase();
  const { rows } = await sql<{ counted_at: string }>`
    insert into mail_counts as c (address, kind, sent_at) values (${address}, ${kind}, array[now()])
    on conflict (address, kind) do update set sent_at = array(${recent}) || now()
    where cardinality(array(${recent})) < ${sql.lit(most)}
    returning now()::text as counted_at`.execute(tx);
  return rows[0] ?? { free_in_s: await freeIn(tx, address, kind) };
}

/** Seconds until the oldest counted mail leaves the window. Not by `now()`: the transaction may have begun before that mail. */
async function freeIn(tx: Tx, address: string, kind: string): Promise<number> {
  const { rows } = await sql<{ free_in_s: number | null }>`
    select extract(epoch from (${recent} limit 1) + ${window} - clock_timestamp())::float8 as free_in_s
    from mail_counts c where address = ${address} and kind = ${kind}`.execute(tx);
  return Math.max(1, Math.ceil(rows[0]?.free_in_s ?? 1));
}

/** Counts a mail that left late from now on, instead of from `counted_at`. */
export async function recountMail(tx: Tx, email: string, kind: string, counted_at: string): Promise<void> {
  await sql`
    insert into mail_counts as c (address, kind, sent_at) values (${email.toLowerCase()}, ${kind}, array[now()])
    on conflict (address, kind) do update
    set sent_at = array_remove(c.sent_at, ${counted_at}::timestamptz) || now()`.execute(tx);
}

/** For the sweep. */
export async function deleteOldMailCounts(tx: Tx): Promise<void> {
  await sql`
    delete from mail_counts c where not exists (${recent})`.execute(tx);
}

/** How long a mail without a token is tried: longer than an outage of a mail server. */
export const TOLD_FOR_S = 7 * 86_400;

/** The kinds that {@link Mailbox.post} limits; each kind of notification is one more. */
export type PostKind =
  | 'password_reset'
  | 'confirm_email'
  | 'email_changing'
  | 'identity_linked'
  | 'invitation'
  | 'billing_email';
export type Post = Mail & {
  readonly kind: PostKind;
  /** The organisation whose member named the address. */
  readonly from?: OrgId;
};

/** A mail in the outbox. */
export type Letter = Mail & {
  readonly kind: string;
  /** When the limit of its kind counted it. */
  readonly counted_at: string;
  /** The hash of the token that it contains, in hexadecimal digits. */
  readonly token?: string | undefined;
};

const posted = new Signal();

/** Calls `wake` after each commit of a mail in this process. Returns the function that unsubscribes. */
export const onPosted = posted.subscribe;

export class Mailbox {
  readonly #sealer: Sealer;

  constructor(sealer: Sealer) {
    this.#sealer = sealer;
  }

  /**
   * Counts and inserts a mail. It is sent after the commit, and tried for `good_for_s` seconds, or until the token that
   * it contains is no longer valid.
   * @throws AppError RATE_LIMITED if the address had too many of the kind, or the organisation sent too many: the caller's change is
   * rolled back with it
   */
  async post(
    tx: Tx,
    { kind, to, subject, text, from }: Post,
    good_for_s: number,
    token_hash?: Buffer,
  ): Promise<void> {
    const counted = await countMail(tx, to, kind);
    if ('free_in_s' in counted) {
      throw new AppError('RATE_LIMITED', {
        message: `${to} was sent ${MAX_MAILS} mails of this kind within ${WINDOW_S / 60} minutes, which is the most. Nothing was changed; try again later.`,
        retry_after_seconds: counted.free_in_s,
      });
    }
    const sent = from && (await countSent(tx, from));
    if (sent && 'free_in_s' in sent) {
      throw new AppError('RATE_LIMITED', {
        message: `The organisation has sent ${MAX_SENT} mails within ${WINDOW_S / 60} minutes, which is the most. Nothing was changed; try again later.`,
        retry_after_seconds: sent.free_in_s,
      });
    }
    const token = token_hash?.toString('hex');
    await this.insert(tx, { kind, to, subject, text, ...counted, token }, good_for_s);
  }

  /** Inserts a mail that was counted. `user_id`: the mail is deleted with this account. */
  async insert(tx: Tx, letter: Letter, good_for_s: number, user_id: UserId | null = null): Promise<void> {
    const id = newId('mail');
    const content = this.#sealer.seal(JSON.stringify(letter), id);
    await insertMail(tx, { id, kind: letter.kind, user_id, content }, good_for_s);
    afterCommit(tx, posted.notify);
  }

  /** null if it was encrypted under another root key. */
  open(id: MailId, content: Buffer): Letter | null {
    const text = this.#sealer.open(content, id);
    return text === null ? null : (JSON.parse(text) as Letter);
  }
}
