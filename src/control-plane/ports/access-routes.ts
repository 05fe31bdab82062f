/**
 * Routes that give a browser a ticket for a private HTTP port, and that add and remove the custom hostnames of a port.
 */
import { Type } from 'typebox';
import { CUSTOM_HOSTNAMES_MAX } from '../../protocol/ingress-types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { invalid } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { type App, mutate } from '../http/mutate.ts';
import { EmptyBody, NoContent, named, pathIds, Time } from '../http/schemas.ts';
import { openPrivatePort } from './authorise-request.ts';
import { addHostname, removeHostname } from './change-ports.ts';
import { COOKIE_SECONDS, hostnameView, PORT_TICKET_SECONDS, readHostname } from './model.ts';
import { CustomHostname, EXAMPLE_CUSTOM, PortParams, portRef } from './routes.ts';

const Hostname = Type.String({ minLength: 1, maxLength: 253, examples: [EXAMPLE_CUSTOM] });
const OpenPortRequest = named('OpenPortRequest', {
  hostname: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 253,
      description: "One of the port's active custom hostnames; default: its own hostname",
      examples: [EXAMPLE_CUSTOM],
    }),
  ),
});
const PortTicket = named('PortTicket', {
  url: Type.String({
    description: 'For the browser; works once',
    examples: ['https://web-1-7hq2m9xk.apps.example.org/.berth/open?ticket=berth_ptix_…'],
  }),
  expires_at: Time,
});
const AddHostnameRequest = named('AddHostnameRequest', { hostname: Hostname });
const HostnameParams = pathIds({
  id: 'the instance',
  port_id: 'the port',
  hostname: 'the hostname, which is its own',
});

export function registerPortAccess(app: App, context: AppContext): void {
  registerOpen(app, context);
  registerAdd(app, context);
  registerRemove(app, context);
}

function registerOpen(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/ports/:port_id/open',
    config: { access: 'session', any_scope: ['vm:read'], errors: ['CONFLICT'] },
    schema: {
      operationId: 'openPort',
      summary: 'Get a URL that opens a private port in a browser',
      description: `The URL works once, within ${PORT_TICKET_SECONDS} s. It gives the browser a cookie of that hostname, valid for ${COOKIE_SECONDS / 3600} h, and leads to \`/\`. Access ends with the session, the membership and the port. 409 on a public port, whose own URL anybody can open.`,
      tags: ['HTTP ports'],
      params: PortParams,
      body: OpenPortRequest,
      response: { 201: PortTicket },
    },
    handler: async (request, reply) => {
      const place = portRef(request.params);
      const wanted = request.body.hostname?.toLowerCase() ?? null;
      const mutation = { action: 'port.open' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const { url, expires_at } = await openPrivatePort(tx, context.http, principal, place, wanted);
        return { status: 201, body: { url, expires_at: rfc3339(expires_at) }, target: place.id };
      });
      reply.header('cache-control', 'no-store');
      return reply.status(201).send(body);
    },
  });
}

/** @throws AppError INVALID_REQUEST */
function hostnameOf({ http, public_url, hosts = [] }: AppContext, text: string): string {
  const read = readHostname(text, http.domain, [new URL(public_url).hostname, ...hosts]);
  if ('issue' in read) throw invalid('hostname', read.issue);
  return read.hostname;
}

function registerAdd(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/ports/:port_id/hostnames',
    config: { access: 'vm:write', idempotent: true, errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'addPortHostname',
      summary: 'Add a hostname of your own to an HTTP port',
      description: `It is active once the TXT record in the answer is found, and no other port is active under that name. Let the hostname itself (CNAME, A, AAAA) lead to this installation. A port has at most ${CUSTOM_HOSTNAMES_MAX}.`,
      tags: ['HTTP ports'],
      params: PortParams,
      body: AddHostnameRequest,
      response: { 201: CustomHostname },
    },
    handler: async (request, reply) => {
      const place = portRef(request.params);
      const hostname = hostnameOf(context, request.body.hostname);
      const mutation = { action: 'port.add_hostname' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await addHostname(tx, context.http, principal, place, hostname);
        return { status: 201, body: hostnameView(row), target: place.id, data: { hostname } };
      });
      return reply.status(201).send(body);
    },
  });
}

function registerRemove(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id/ports/:port_id/hostnames/:hostname',
    config: { access: 'vm:write', errors: ['CONFLICT'] },
    schema: {
      operationId: 'deletePortHostname',
      summary: 'Remove a hostname of your own from an HTTP port',
      tags: ['HTTP ports'],
      params: HostnameParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const place = portRef(request.params);
      const hostname = request.params.hostname.toLowerCase();
      const mutation = { action: 'port.remove_hostname' };
      await mutate(context, request, reply, mutation, async (tx, principal) => {
        await removeHostname(tx, context.http, principal, place, hostname);
        return { status: 204, body: null, target: place.id, data: { hostname } };
      });
      return reply.status(204).send(null);
    },
  });
}
