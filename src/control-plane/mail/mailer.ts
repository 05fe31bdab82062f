/** Delivers a mail: as a file in the folder `mail/` (one .eml each), or by SMTP. */
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';

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
const SMTP_TIMEOUTS = { connectionTimeout: 10_000, greetingTimeout: 10_000, socketTimeout: 30_000 };
const FROM_NAME = 'Berth';

/** `smtp_url` null: messages become files in `folder`, readable by its owner only: they hold single-use tokens. */
export function createDeliver(options: {
  smtp_url: string | null;
  folder: string;
  from: string;
  timeouts?: typeof SMTP_TIMEOUTS;
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

function bySmtp(smtp_url: string, from: string, timeouts: typeof SMTP_TIMEOUTS): Deliver {
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
