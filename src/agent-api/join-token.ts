/**
 * The join token of a host or an ingress on another machine: its token and the SHA-256 of the control plane's certificate, `<token>.<43 base64url>`.
 * It sends only the token, and only to a server with that certificate.
 */
import { X509Certificate } from 'node:crypto';

export interface JoinToken {
  readonly token: string;
  /** In Node's form: upper-case hexadecimal bytes with colons. */
  readonly fingerprint: string;
}

export function composeJoinToken(token: string, certificate_pem: string | Buffer): string {
  const bytes = new X509Certificate(certificate_pem).fingerprint256.replaceAll(':', '');
  return `${token}.${Buffer.from(bytes, 'hex').toString('base64url')}`;
}

/** Null when the text is not a join token. */
export function parseJoinToken(text: string): JoinToken | null {
  const match = /^(berth_(?:host|ingress)_[0-9A-Za-z]{49})\.([A-Za-z0-9_-]{43})$/.exec(text.trim());
  if (!match?.[1] || !match[2]) return null;
  const hex = Buffer.from(match[2], 'base64url').toString('hex').toUpperCase();
  return { token: match[1], fingerprint: (hex.match(/../g) ?? []).join(':') };
}
