/** Routes of the serial console: its log, and tickets for its stream. */
import { type TSchema, Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import { type App, mutate } from '../http/mutate.ts';
import { closed, EmptyBody, InstanceParams, named, oneOf, Time, wholeNumber } from '../http/schemas.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance } from '../instances/store.ts';
import { issueConsoleTicket, readConsoleLog } from './console.ts';
import { TICKET_SECONDS } from './console-ticket-store.ts';

const DEFAULT_TAIL_KIB = 64;
const MAX_TAIL_KIB = 1024;

const ConsoleTicket = named('ConsoleTicket', {
  ticket: Type.String({
    description: 'Shown only once; valid for one connection',
    examples: ['berth_cons_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti'],
  }),
  expires_at: Time,
});

export function registerVmConsole(app: App, context: AppContext): void {
  registerLog(app, context);
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/console/ticket',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'createConsoleTicket',
      summary: 'Create a ticket for the live serial console',
      description: `A ticket opens one WebSocket, \`GET /v1/instances/{id}/vm/console/stream?ticket=…\`, within ${TICKET_SECONDS} s. Messages in both directions, text or binary, are the bytes of the serial line; Enter gets a root shell. The server closes with 1000 when the VM ends, and with 1008 when the credential that created the ticket ends: a key by revocation, expiry or rotation (after its grace period), a session when it ends, not when its token is refreshed. A reader that takes nothing for a while is disconnected. The VM must be starting, running or stopping; otherwise 409.`,
      tags: ['VM'],
      params: InstanceParams,
      body: EmptyBody,
      response: { 201: ConsoleTicket },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const mutation = { action: 'vm.console' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const { ticket, expires_at } = await issueConsoleTicket(tx, principal, id);
        return { status: 201, body: { ticket, expires_at: rfc3339(expires_at) }, target: id };
      });
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
      summary: 'Get the end of the serial console log',
      description:
        'The output of this boot and of earlier boots on the same host, which keeps one to two MiB. It is raw: terminal control characters are included. With `timestamps=true` each line begins with a time in RFC 3339 (UTC, exact to 0.1 s) and a space, or with `- ` where the time is not known; `tail_kib` then includes the times.',
      tags: ['VM'],
      params: InstanceParams,
      querystring: closed({
        tail_kib: Type.Optional(
          wholeNumber(
            { minimum: 1, maximum: MAX_TAIL_KIB, default: DEFAULT_TAIL_KIB },
            'How much of the end of the log',
          ),
        ),
        timestamps: Type.Optional(
          oneOf(['true', 'false'], {
            default: 'false',
            description: 'Puts in front of each line the time at which it began to arrive, and a space',
          }),
        ),
      }),
      response: { 200: plainText() },
    },
    handler: async (request, reply) => {
      const tail_kib = Number(request.query.tail_kib ?? DEFAULT_TAIL_KIB);
      if (tail_kib < 1 || tail_kib > MAX_TAIL_KIB) throw invalid('tail_kib', `must be 1 to ${MAX_TAIL_KIB}`);
      const row = await findInstance(db, principalOf(request).org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const timestamps = request.query.timestamps === 'true';
      const tail = { max_bytes: tail_kib * 1024, timestamps };
      const text = await readConsoleLog(host_calls, row, tail, disconnectSignal(reply));
      return reply.type('text/plain; charset=utf-8').send(text as never);
    },
  });
}

function plainText(): TSchema {
  const schema = Type.String({ maxLength: MAX_TAIL_KIB * 1024 });
  return { description: 'The log.', content: { 'text/plain': { schema } } } as never;
}
