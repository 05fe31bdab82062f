/** A mailbox that records each mail once its transaction has committed. */
import { randomBytes } from 'node:crypto';
import { afterCommit, type Tx } from '../../src/control-plane/db/pool.ts';
import type { Mail } from '../../src/control-plane/mail/send-mails.ts';
import { Mailbox, type Post } from '../../src/control-plane/mail/store.ts';
import { Sealer } from '../../src/shared/seal.ts';

export class RecordingMailbox extends Mailbox {
  readonly committed: Mail[] = [];

  constructor() {
    super(new Sealer(randomBytes(32), 'test mails'));
  }

  override async post(tx: Tx, mail: Post, good_for_s: number, token_hash?: Buffer): Promise<void> {
    await super.post(tx, mail, good_for_s, token_hash);
    afterCommit(tx, () => void this.committed.push(mail));
  }
}
