/** What the resolver answers to a guest's message. */
import { readQuery, TYPE_A, TYPE_AAAA, writeAnswer, writeRefusal } from './dns-message.ts';
import type { Guest } from './guest.ts';

const PROHIBITED = "not allowed by the instance's egress policy";

/** null: no answer. */
export async function answerQuery(guest: Guest, message: Buffer, over_udp: boolean): Promise<Buffer | null> {
  const query = readQuery(message);
  if (query === null) return null;
  if (!('question' in query)) return writeRefusal(query);
  const { name, type } = query;
  if (name === null) return writeAnswer(query, { rcode: 'absent', prohibited: PROHIBITED }, over_udp);
  if (!guest.permitsName(name, null)) {
    // apt asks for `_http._tcp.NAME` beside NAME; that is no attempt of its own.
    const plain = name.replace(/^(_[a-z0-9-]+\.)+/, '');
    if (plain === name || !guest.permitsName(plain, null)) guest.deny({ name, address: null, port: null });
    return writeAnswer(query, { rcode: 'absent', prohibited: PROHIBITED }, over_udp);
  }
  // Other records are not needed to connect. HTTPS records would bring ECH, whose inner name nobody can check.
  if (type !== TYPE_A && type !== TYPE_AAAA) return writeAnswer(query, { rcode: 'ok' }, over_udp);
  const found = await guest.lookUp(name, type === TYPE_A ? 4 : 6);
  if (found.outcome !== 'found') return writeAnswer(query, { rcode: found.outcome }, over_udp);
  // The policy may have changed meanwhile.
  const addresses = guest.permitsName(name, null) ? found.addresses : [];
  return writeAnswer(query, { rcode: 'ok', addresses, ttl_seconds: found.ttl_seconds }, over_udp);
}
