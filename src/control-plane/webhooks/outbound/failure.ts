/**
 * The failure of a request, described for the owner of the webhook. A text never has an address that a name resolved to:
 * it may be internal to the operator.
 */
import { errors } from 'undici';
import { errnoOf } from '../../../shared/errors.ts';
import { NameUnknown } from './resolve.ts';

/** The policy refused an address; nothing was sent. */
export class AddressRefused extends Error {
  override name = 'AddressRefused';
}

const TEXTS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'the connection was refused',
  ECONNRESET: 'the connection was closed before the answer',
  EPIPE: 'the connection was closed before the answer',
  UND_ERR_SOCKET: 'the connection was closed before the answer',
  EHOSTUNREACH: 'the host cannot be reached',
  ENETUNREACH: 'the network cannot be reached',
  ETIMEDOUT: 'the connection timed out',
  UND_ERR_CONNECT_TIMEOUT: 'the connection timed out',
  UND_ERR_DESTROYED: 'the request was given up',
  UND_ERR_HEADERS_OVERFLOW: 'the headers of the answer are too large',
  DEPTH_ZERO_SELF_SIGNED_CERT: 'TLS: the certificate is self-signed',
  SELF_SIGNED_CERT_IN_CHAIN: 'TLS: a certificate of the chain is self-signed and not trusted',
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: 'TLS: the certificate is of no trusted authority',
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: 'TLS: the certificate is of no trusted authority',
  CERT_HAS_EXPIRED: 'TLS: the certificate has expired',
  CERT_NOT_YET_VALID: 'TLS: the certificate is not valid yet',
  ERR_TLS_CERT_ALTNAME_INVALID: 'TLS: the certificate is for another name',
};

export function failureText(thrown: unknown): string {
  if (thrown instanceof AddressRefused) return thrown.message;
  if (thrown instanceof NameUnknown) return 'the name does not resolve';
  // Several addresses were tried; the first failure stands for all.
  if (thrown instanceof AggregateError && thrown.errors.length > 0) return failureText(thrown.errors[0]);
  const code = errnoOf(thrown) ?? '';
  const text = TEXTS[code];
  if (text !== undefined) return text;
  if (thrown instanceof errors.HTTPParserError) return 'the answer is not HTTP/1.1';
  if (code.startsWith('ERR_SSL_') || code.startsWith('ERR_TLS_') || code === 'EPROTO') {
    return 'TLS: the handshake failed';
  }
  return 'the request failed';
}
