/** Reads the mail of an installation without SMTP: one .eml file per message. */
import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  createDeliver,
  type Deliver,
  type SendingParts,
  sendMails,
} from '../../src/control-plane/mail/send-mails.ts';
import { createLog } from '../../src/shared/log.ts';
import { until } from './waiting.ts';

export interface MailFolder {
  readonly deliver: Deliver;
  /** Every read sends the waiting mails first. */
  collectFrom(parts: Pick<SendingParts, 'db' | 'mailbox'>): void;
  /** Messages to this address with their headers, oldest first. */
  to(email: string): Promise<string[]>;
  /** The token in the first message to this address with a token, after skipping `already` of them. */
  token(email: string, already?: number): Promise<string>;
  /** The modes of the files. */
  modes(): Promise<number[]>;
  close(): Promise<void>;
}

export async function makeMailFolder(): Promise<MailFolder> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-mail-'));
  const deliver = createDeliver({ smtp_url: null, folder, from: 'berth@example.org' });
  const log = createLog('test', 'silent');
  const sources: Pick<SendingParts, 'db' | 'mailbox'>[] = [];
  const names = async () => (await readdir(folder)).filter((name) => /^[^.].*\.eml$/.test(name)).sort();
  /** RFC 2045, section 6.7. */
  const decode = (text: string) =>
    text
      .replaceAll('=\n', '')
      .replace(/=([0-9A-F]{2})/g, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)));
  const to = async (email: string) => {
    for (const { db, mailbox } of sources) await sendMails({ db, mailbox, deliver, log });
    const texts = await Promise.all((await names()).map((name) => readFile(join(folder, name), 'utf8')));
    return texts.map(decode).filter((text) => text.toLowerCase().includes(`\nto: ${email.toLowerCase()}\n`));
  };
  return {
    deliver,
    collectFrom: (parts) => void sources.push(parts),
    to,
    token: async (email, already = 0) => {
      const tokens = async () =>
        (await to(email)).flatMap((text) => /\bberth_mail_[0-9A-Za-z]{49}\b/.exec(text) ?? []);
      return until(`a mail with a token to ${email}`, async () => (await tokens())[already]);
    },
    modes: async () =>
      Promise.all((await names()).map(async (name) => (await stat(join(folder, name))).mode & 0o777)),
    close: () => rm(folder, { recursive: true, force: true }),
  };
}
