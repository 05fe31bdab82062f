import { type TSchema, Type } from 'typebox';
import { findInstance } from '../../instances/store.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { AppError, invalid } from '../../lib/errors.ts';
import { issueConsoleTicket, readConsoleLog } from '../../vms/console.ts';
import { TICKET_SECONDS } from '../../vms/console-ticket-store.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { hangUp } from '../hang-up.ts';
import { mutate } from '../mutate.ts';
import { COMMON, closed, EmptyBody, errors, InstanceParams, named, Time, wholeNumber } from '../schemas.ts';
import { instanceId } from './instances.ts';

const DEFAULT_TAIL_KIB = 64;
const MAX_TAIL_KIB = 1024;

const ConsoleTicket = named('ConsoleTicket', {
  ticket: Type.String({ description: 'Shown this once; good for one connection' }),
  expires_at: Time,
});

export function registerVmConsole(app: App, context: AppContext): void {
  registerLog(app, context);
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/console/ticket',
    config: { access: 'vm:write' },
    schema: {
      operationId: 'createConsoleTicket',
      summary: 'A ticket for the live serial console',
      description: `Good for one WebSocket, \`GET /v1/instances/{id}/vm/console/stream?ticket=…\`, within ${TICKET_SECONDS} s. Messages in either direction, text or binary, are the line's bytes; Enter gets a root shell. It closes with 1000 when the VM ends, 1008 when the credential that asked has ended: a key's secret by revocation, expiry or rotation (after the grace), a session as such, whatever becomes of its token; a reader that takes nothing for a while is cut off. While a VM starts, runs or stops; else 409.`,
      tags: ['VM'],
      params: InstanceParams,
      body: EmptyBody,
      response: { 201: ConsoleTicket, ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT', 'VM_NOT_RUNNING') },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { body } = await mutate(
        context,
        request,
        reply,
        { action: 'vm.console' },
        async (tx, principal) => {
          const { ticket, expires_at } = await issueConsoleTicket(tx, principal, id);
          return { status: 201, body: { ticket, expires_at: rfc3339(expires_at) }, target: id };
        },
      );
      return reply.status(201).send(body);
    },
  });
}

function registerLog(app: App, { db, host_calls }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/vm/console',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'getConsoleLog',
      summary: 'The end of what the guest has printed on its serial console',
      description:
        "Of this boot and those before on the same host, which keeps a mebibyte or two. As it was printed, the terminal's control characters included.",
      tags: ['VM'],
      params: InstanceParams,
      querystring: closed({
        tail_kib: Type.Optional(
          wholeNumber(
            { minimum: 1, maximum: MAX_TAIL_KIB, default: DEFAULT_TAIL_KIB },
            'How much of its end',
          ),
        ),
      }),
      response: { 200: plainText(), ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request, reply) => {
      const tail_kib = Number(request.query.tail_kib ?? DEFAULT_TAIL_KIB);
      if (tail_kib < 1 || tail_kib > MAX_TAIL_KIB) throw invalid('tail_kib', `must be 1 to ${MAX_TAIL_KIB}`);
      const row = await findInstance(db, principalOf(request).org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const text = await readConsoleLog(host_calls, row, tail_kib * 1024, hangUp(reply));
      return reply.type('text/plain; charset=utf-8').send(text as never);
    },
  });
}

function plainText(): TSchema {
  const schema = Type.String({ maxLength: MAX_TAIL_KIB * 1024 });
  return { description: 'The log.', content: { 'text/plain': { schema } } } as never;
}
