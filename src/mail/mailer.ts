/**
 * Mail that the service sends. Messages are written into the outbox of the folder `mail/` (one .eml each) or go out
 * by SMTP; either way the caller's transaction never waits for it, and a failure is logged, not the caller's.
 */
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { backoffMs, pause } from '../lib/backoff.ts';
import { errnoOf, messageOf } from '../lib/errors.ts';
import type { Log } from '../lib/log.ts';

export interface Mail {
  readonly to: string;
  readonly subject: string;
  /** Plain text. */
  readonly text: string;
  /** The same mail sent again has the same; absent: it is sent once. */
  readonly id?: string;
}

export interface Mailer {
  /** Sends in the background. */
  send(mail: Mail): void;
  /** Resolves when everything sent so far is out or given up. */
  close(): Promise<void>;
}

/** Sends a mail now, once. */
export type Deliver = (mail: Mail) => Promise<void>;

const TRIES = 5;
/** Of a server that is silent: milliseconds to connect, to its greeting, and between any two of its words. */
const SMTP_TIMEOUTS = { connectionTimeout: 10_000, greetingTimeout: 10_000, socketTimeout: 30_000 };
const FROM_NAME = 'Berth';

/** `smtp_url` null: messages become files in `folder`, readable by its owner only: they hold single-use tokens. */
export function createMailer(options: {
  smtp_url: string | null;
  folder: string;
  from: string;
  log: Log;
  timeouts?: typeof SMTP_TIMEOUTS;
}): Mailer & { readonly deliver: Deliver } {
  const deliver =
    options.smtp_url === null
      ? intoFolder(options.folder, options.from)
      : bySmtp(options.smtp_url, options.from, options.timeouts ?? SMTP_TIMEOUTS);
  const under_way = new Set<Promise<void>>();
  return {
    deliver,
    send(mail) {
      const sending = sendWithRetries(deliver, mail, options.log).finally(() => under_way.delete(sending));
      under_way.add(sending);
    },
    async close() {
      await Promise.all(under_way);
    },
  };
}

async function sendWithRetries(deliver: Deliver, mail: Mail, log: Log): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await deliver(mail);
    } catch (error) {
      log.warn({ reason: messageOf(error), subject: mail.subject, attempt }, 'mail could not be sent');
      if (attempt + 1 === TRIES) return;
      await pause(backoffMs(attempt, 1_000, 30_000));
    }
  }
}

function intoFolder(folder: string, from: string): Deliver {
  let count = 0;
  return async (mail) => {
    // It composes the message; nothing is sent anywhere. Loaded with the first mail: most starts send none.
    const { createTransport } = await import('nodemailer');
    const composer = createTransport({ streamTransport: true, buffer: true, newline: 'unix' });
    const { message } = await composer.sendMail(headed(mail, from));
    count += 1;
    const time = new Date().toISOString().replaceAll(':', '-');
    const name = mail.id === undefined ? `${time}-${process.pid}-${count}.eml` : `${mail.id}.eml`;
    const write = () => writeFile(join(folder, `.${name}`), message as Buffer, { mode: 0o600 });
    await write().catch(async (error: unknown) => {
      if (errnoOf(error) !== 'ENOENT') throw error;
      await mkdir(folder, { recursive: true, mode: 0o700 });
      await write();
    });
    await rename(join(folder, `.${name}`), join(folder, name));
  };
}

function bySmtp(smtp_url: string, from: string, timeouts: typeof SMTP_TIMEOUTS): Deliver {
  return async (mail) => {
    const { createTransport } = await import('nodemailer');
    // Beside the URL: what comes as a second argument are headers that every message has.
    await createTransport({ url: smtp_url, ...timeouts }).sendMail(headed(mail, from));
  };
}

function headed({ to, subject, text, id }: Mail, from: string) {
  const domain = from.slice(from.lastIndexOf('@') + 1);
  const message_id = id === undefined ? {} : { messageId: `<${id}@${domain}>` };
  // As text it would be read as a list: a comma in it, or a <, would send the mail elsewhere.
  const whole = { name: '', address: to };
  return { from: `${FROM_NAME} <${from}>`, to: whole, subject, text, ...message_id };
}
