/**
 * Negotiates the version of the internal API between agent or ingress and control plane, by a header of every request
 * and answer. Also composes and parses the join token of a host or ingress on another machine (`JoinToken`): a token,
 * and the fingerprint of the control plane's certificate.
 */
import { X509Certificate } from 'node:crypto';
import { Type } from 'typebox';
import type { Log } from '../shared/log.ts';
import type { Negotiated } from './client.ts';
import { closed, named } from './schemas.ts';

/** The version that this program speaks in every role. */
export const AGENT_PROTOCOL = 1;
/** The versions that a control plane understands: its own, and the one before. */
export const PROTOCOLS = servedBy(AGENT_PROTOCOL);

/** The versions that a control plane of this version serves; the first version has none before it. */
export function servedBy(version: number): readonly number[] {
  return version === 1 ? [1] : [version, version - 1];
}

/** On every request and answer: the sender's version. */
export const PROTOCOL_HEADER = 'berth-agent-protocol';

/** The version in a caller's header; 0 when there is none. */
export function protocolOf(headers: Readonly<Record<string, unknown>>): number {
  const said = headers[PROTOCOL_HEADER];
  return typeof said === 'string' && /^[0-9]{1,9}$/.test(said) ? Number(said) : 0;
}

/** Null when the version is served. */
export function refusalOf(said: number, served = PROTOCOLS): string | null {
  if (served.includes(said)) return null;
  const versions = `${served.length === 1 ? 'version' : 'versions'} ${served.join(' and ')}`;
  const ours = `The control plane speaks ${versions} of the agent protocol`;
  if (said === 0) return `${ours}, and this host sent none. Upgrade Berth on this host.`;
  const behind = said > Math.max(...served) ? 'the control plane' : 'Berth on this host';
  return `${ours}, and this host speaks version ${said}. Upgrade ${behind}.`;
}

export function refusalBody(message: string) {
  return { error: { code: 'PROTOCOL_REFUSED', message } };
}

/** The body of a refusal, with status 426. */
export const ProtocolRefusal = named('ProtocolRefusal', {
  error: closed({
    code: Type.Literal('PROTOCOL_REFUSED'),
    message: Type.String({ maxLength: 300 }),
  }),
});

/** Logs the protocol versions of both sides, at the first answer and at each change. */
export function logNegotiated(log: Log): (found: Negotiated) => void {
  return ({ ours, theirs, refusal }) => {
    const versions = { protocol: ours, control_plane_protocol: theirs };
    if (refusal === null) log.info(versions, 'the control plane answers');
    else log.error({ ...versions, reason: refusal }, 'the control plane refuses this version');
  };
}

/**
 * The join token of a host or an ingress on another machine: a token and the SHA-256 of the control plane's certificate,
 * `<token>.<43 base64url>`. It is sent only to a server with that certificate. That of a host works once: the host exchanges it for a
 * credential of its own.
 */
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
