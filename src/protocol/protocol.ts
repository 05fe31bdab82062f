/** The versions of the agent protocol, and the refusal of others. */
import { Type } from 'typebox';
import { closed, named } from './schemas.ts';

/** The version that this program speaks in every role. */
export const AGENT_PROTOCOL = 3;
/** The versions that a control plane understands. */
export const PROTOCOLS: readonly number[] = [AGENT_PROTOCOL, AGENT_PROTOCOL - 1];
/** On every request and answer: the sender's version. */
export const PROTOCOL_HEADER = 'berth-agent-protocol';

/** The version in a caller's header; 0 when there is none. */
export function protocolOf(headers: Readonly<Record<string, unknown>>): number {
  const said = headers[PROTOCOL_HEADER];
  return typeof said === 'string' && /^[0-9]{1,9}$/.test(said) ? Number(said) : 0;
}

/** Null when the version is served. */
export function refusalOf(said: number): string | null {
  if (PROTOCOLS.includes(said)) return null;
  const ours = `The control plane speaks versions ${PROTOCOLS.join(' and ')} of the agent protocol`;
  if (said === 0) return `${ours}, and this host sent none. Upgrade Berth on this host.`;
  const behind = said > Math.max(...PROTOCOLS) ? 'the control plane' : 'Berth on this host';
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
