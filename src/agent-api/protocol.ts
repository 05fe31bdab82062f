/** Which versions of the agent protocol are spoken, and what others are answered. */
import { Type } from 'typebox';
import { closed, named } from './schemas.ts';

/** The version of what this program says as an agent, an ingress and a control plane. */
export const AGENT_PROTOCOL = 2;
/** What a control plane understands. */
export const PROTOCOLS: readonly number[] = [AGENT_PROTOCOL, AGENT_PROTOCOL - 1];
/** On every request and every answer: the version of who sends it. */
export const PROTOCOL_HEADER = 'berth-agent-protocol';

/** What a caller's header says; 0: nothing that is a version. */
export function protocolOf(headers: Readonly<Record<string, unknown>>): number {
  const said = headers[PROTOCOL_HEADER];
  return typeof said === 'string' && /^[0-9]{1,9}$/.test(said) ? Number(said) : 0;
}

/** null: it is served. */
export function refusalOf(said: number): string | null {
  if (PROTOCOLS.includes(said)) return null;
  const ours = `The control plane speaks versions ${PROTOCOLS.join(' and ')} of the agent protocol`;
  if (said === 0) return `${ours}, and this host named none. Upgrade Berth on this host.`;
  const behind = said > Math.max(...PROTOCOLS) ? 'the control plane' : 'Berth on this host';
  return `${ours}, and this host speaks version ${said}. Upgrade ${behind}.`;
}

export function refusalBody(message: string) {
  return { error: { code: 'PROTOCOL_REFUSED', message } };
}

/** What refuses another version, with status 426. */
export const ProtocolRefusal = named('ProtocolRefusal', {
  error: closed({
    code: Type.Literal('PROTOCOL_REFUSED'),
    message: Type.String({ maxLength: 300 }),
  }),
});
