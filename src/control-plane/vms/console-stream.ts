/** The live serial console. A browser's WebSocket cannot send a credential, so a ticket admits it. */
import { consolePlace, consumeConsoleTicket } from './console.ts';
import type { StreamKind } from './guest-streams.ts';

export const consoleStream: StreamKind = {
  name: 'console',
  path: /^\/v1\/instances\/([^/?]{1,64})\/vm\/console\/stream(?:\?|$)/,
  reauthorise_ms: 15_000,
  half_open: false,
  admit: async ({ db }, request, id) => {
    const query = new URL(request.url ?? '', 'http://console').searchParams;
    const holder = await consumeConsoleTicket(db, id, query.get('ticket') ?? '');
    return { holder, call: ({ instance_id, vm_id }) => ({ kind: 'console', instance_id, vm_id }) };
  },
  place: consolePlace,
};
