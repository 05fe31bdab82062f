/**
 * Mails that a change sends to an address: with a token, most of them, so they are sealed while they wait. A mail is put
 * down in the transaction of what it tells, so none is lost and none goes out for what did not happen.
 */
import { afterCommit, type Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { type MailId, newId } from '../lib/ids.ts';
import type { Sealer } from '../lib/seal.ts';
import { Signal } from '../lib/signal.ts';
import { countMail, MAX_MAILS, WINDOW_S } from './count-store.ts';
import type { Mail } from './mailer.ts';
import { insertMail } from './store.ts';

/** For a mail that only tells: a mail server, or this one, may be away for so long before nobody is told. */
export const TOLD_FOR_S = 7 * 86_400;

/** An address gets a bounded number of each. Notifications are kinds of their own. */
export type PostKind = 'password_reset' | 'confirm_email' | 'email_changing' | 'invitation' | 'billing_email';
export type Post = Mail & { readonly kind: PostKind };

/** With the hash of the token in it, as hexadecimal digits. */
export type Posted = Mail & { readonly token?: string | undefined };

const posted = new Signal();

/** Calls `wake` after each commit of a mail in this process. Returns the undoing. */
export const onPosted = posted.subscribe;

export class Mailbox {
  readonly #sealer: Sealer;

  constructor(sealer: Sealer) {
    this.#sealer = sealer;
  }

  /**
   * It goes out once the transaction is committed; tried again for `good_for_s` seconds, after which nobody needs it, nor
   * once the token that it brings does nothing any more.
   * @throws AppError RATE_LIMITED where the address has had too many of the kind: the change is not made, so that nobody is silently not told
   */
  async post(
    tx: Tx,
    { kind, to, subject, text }: Post,
    good_for_s: number,
    token_hash?: Buffer,
  ): Promise<void> {
    await count(tx, to, kind);
    const id = newId('mail');
    const whole: Posted = { to, subject, text, token: token_hash?.toString('hex') };
    await insertMail(tx, id, this.#sealer.seal(JSON.stringify(whole), id), good_for_s);
    afterCommit(tx, posted.notify);
  }

  /** null where the server's key is not what it was sealed with. */
  open(id: MailId, sealed: Buffer): Posted | null {
    const text = this.#sealer.open(sealed, id);
    return text === null ? null : (JSON.parse(text) as Posted);
  }
}

async function count(tx: Tx, to: string, kind: PostKind): Promise<void> {
  const counted = await countMail(tx, to, kind);
  if ('counted_at' in counted) return;
  throw new AppError('RATE_LIMITED', {
    message: `${to} was sent ${MAX_MAILS} mails of this kind within ${WINDOW_S / 60} minutes, which is the most. Nothing was changed; try again later.`,
    retry_after_seconds: counted.free_in_s,
  });
}
