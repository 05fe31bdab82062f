/** The token of a mail, from its link or by itself. */
import { UsageError } from './command-error.ts';

/** @throws UsageError */
export function mailTokenOf(text: string): string {
  const hash = URL.canParse(text) ? new URL(text).hash.slice(1) : '';
  const token = new URLSearchParams(hash).get('token') ?? text;
  if (/^berth_mail_\w+$/.test(token)) return token;
  throw new UsageError('that is neither the link nor the token of a mail');
}

/** The server of a link; undefined for a token. */
export function serverOfLink(text: string): string | undefined {
  return URL.canParse(text) ? new URL(text).origin : undefined;
}
