/**
 * The outbox of all mails. A change inserts its mail in its own transaction, so no committed change loses its mail and
 * no mail tells of a change that was rolled back. Mails are sealed while they wait: most contain a token.
 */
import { AppError } from '../../shared/errors.ts';
import { type MailId, newId, type OrgId, type UserId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import { Signal } from '../../shared/signal.ts';
import { afterCommit, type Tx } from '../db/pool.ts';
import type { Mail } from './mailer.ts';
import { countMail, countSent, insertMail, MAX_MAILS, MAX_SENT, WINDOW_S } from './store.ts';

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
    const sealed = this.#sealer.seal(JSON.stringify(letter), id);
    await insertMail(tx, { id, kind: letter.kind, user_id, sealed }, good_for_s);
    afterCommit(tx, posted.notify);
  }

  /** null if it was sealed under another root key. */
  open(id: MailId, sealed: Buffer): Letter | null {
    const text = this.#sealer.open(sealed, id);
    return text === null ? null : (JSON.parse(text) as Letter);
  }
}
