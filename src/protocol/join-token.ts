/**
 * The join token of a host or an ingress on another machine: a token and the SHA-256 of the control plane's certificate,
 * `<token>.<43 base64url>`. It is sent only to a server with that certificate. That of a host works once: the host exchanges it for a
 * credential of its own.
 */
import { X509Certificate } from 'node:crypto';

export interface JoinToken {
  readonly token: string;
  /** In Node's form: upper-case hexadecimal bytes with colons. */
  readonly fingerprint: string;
  /** It is a credential itself, as `berth host add` printed it before there were one-time tokens. */
  readonly is_credential: boolean;
}

export function composeJoinToken(token: string, certificate_pem: string | Buffer): string {
  const bytes = new X509Certificate(certificate_pem).fingerprint256.replaceAll(':', '');
  return `${token}.${Buffer.from(bytes, 'hex').toString('base64url')}`;
}

/** Null when the text is not a join token. */
export function parseJoinToken(text: string): JoinToken | null {
  const match = /^(berth_(join|host|ingress)_[0-9A-Za-z]{49})\.([A-Za-z0-9_-]{43})$/.exec(text.trim());
  if (!match?.[1] || !match[3]) return null;
  const hex = Buffer.from(match[3], 'base64url').toString('hex').toUpperCase();
  const fingerprint = (hex.match(/../g) ?? []).join(':');
  return { token: match[1], fingerprint, is_credential: match[2] === 'host' };
}
