/**
 * What a host on another machine is given to join: its token, and the SHA-256 of the certificate that the control plane
 * shows it. `<token>.<43 base64url>`; the host sends the token alone, and only to whoever has that certificate's key.
 */
import { X509Certificate } from 'node:crypto';

export interface JoinToken {
  readonly token: string;
  /** As node has it: upper-case hexadecimal bytes with colons. */
  readonly fingerprint: string;
}

export function composeJoinToken(token: string, certificate_pem: string | Buffer): string {
  const bytes = new X509Certificate(certificate_pem).fingerprint256.replaceAll(':', '');
  return `${token}.${Buffer.from(bytes, 'hex').toString('base64url')}`;
}

/** null: it is none. */
export function parseJoinToken(text: string): JoinToken | null {
  const match = /^(berth_host_[0-9A-Za-z]{49})\.([A-Za-z0-9_-]{43})$/.exec(text.trim());
  if (!match?.[1] || !match[2]) return null;
  const hex = Buffer.from(match[2], 'base64url').toString('hex').toUpperCase();
  return { token: match[1], fingerprint: (hex.match(/../g) ?? []).join(':') };
}
