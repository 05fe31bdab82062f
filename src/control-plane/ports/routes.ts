/**
 * Routes that publish, list, show, change and delete the HTTP ports of an instance. An HTTP port is a port of the guest
 * that the ingress serves under a hostname.
 */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { CUSTOM_HOSTNAMES_MAX } from '../../protocol/ingress-types.ts';
import { AppError } from '../../shared/errors.ts';
import { type HttpPortId, isId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { ACCESSES } from '../db/column-types.ts';
import { principalOf } from '../http/access.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  EmptyBody,
  InstanceParams,
  idOf,
  NoContent,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance } from '../instances/store.ts';
import { changeAccess, createPort, type PortRef, removePort } from './change-ports.ts';
import { PORTS_AN_INSTANCE, portRecord, portView } from './model.ts';
import { findPort, listPorts, type PortRow } from './store.ts';

const EXAMPLE_HOSTNAME = 'web-1-7hq2m9xk.apps.example.org';
export const EXAMPLE_CUSTOM = 'app.example.com';

const GuestPort = Type.Integer({
  minimum: 1,
  maximum: 65_535,
  description: 'In the guest; a port may be published more than once',
  examples: [8080],
});
const ACCESS_WORDS =
  '`public`: anybody. `private`: a credential with `vm:read` on the instance, or a browser that was sent by `…/open`';
const Access = oneOf(ACCESSES, { title: 'PortAccess', description: ACCESS_WORDS, examples: ['private'] });

export const CustomHostname = named('CustomHostname', {
  hostname: Type.String({ examples: [EXAMPLE_CUSTOM] }),
  status: oneOf(['pending', 'active'], {
    description: '`active` once the TXT record is found; it is looked up again daily',
  }),
  txt: closed({
    name: Type.String({ examples: [`_berth.${EXAMPLE_CUSTOM}`] }),
    value: Type.String({ examples: ['berth-port=2f6c0d1b7e9a4c53b8d0e1f2a3b4c5d6e7f80912'] }),
  }),
  checked_at: nullable(Time, { description: 'The last look-up; null: none yet', examples: [null] }),
  problem: nullable(Type.String(), {
    description: 'Why it is not active, as of the last look-up',
    examples: [null],
  }),
});
const LastError = named('PortError', {
  at: Time,
  code: Type.String({ examples: ['BAD_GATEWAY'] }),
  message: Type.String({ examples: ['Nothing listens on port 8080 of web-1.'] }),
});
const Port = named('Port', {
  id: idOf('port'),
  instance_id: idOf('inst'),
  port: GuestPort,
  access: Access,
  hostname: Type.String({
    description: "The same for the port's life, and never assigned again",
    examples: [EXAMPLE_HOSTNAME],
  }),
  url: Type.String({ examples: [`https://${EXAMPLE_HOSTNAME}`] }),
  hostnames: Type.Array(CustomHostname, { description: `At most ${CUSTOM_HOSTNAMES_MAX}` }),
  requests_per_minute: Type.Integer({ description: 'In the last 60 s; a few seconds old', examples: [42] }),
  last_error: nullable(LastError, {
    description: 'The newest answer of Berth instead of the guest (502, 503, 504); null: none yet',
    examples: [null],
  }),
  created_at: Time,
  updated_at: Time,
});
const CreatePortRequest = named('CreatePortRequest', {
  port: GuestPort,
  access: Type.Optional(
    oneOf(ACCESSES, { default: 'private', description: ACCESS_WORDS, examples: ['private'] }),
  ),
});
const ChangePortRequest = named('ChangePortRequest', { access: Type.Optional(Access) });

export const PortParams = pathIds({ id: 'the instance', port_id: 'the port' });

/** The port of a path. @throws AppError NOT_FOUND also where an id is malformed */
export function portRef(params: { readonly id: string; readonly port_id: string }): PortRef {
  const { port_id: id } = params;
  if (!isId('port', id)) throw new AppError('NOT_FOUND');
  return { instance_id: instanceId(params), id: id as HttpPortId };
}

/** Use changes nothing that a call can change. */
const etagValue = ({ id, version }: PortRow) => ({ id, version });
const checkOf = (request: FastifyRequest) => (before: PortRow) => requireMatch(request, etagValue(before));

export function registerPorts(app: App, context: AppContext, cursors: CursorSealer): void {
  registerCreate(app, context);
  registerReads(app, context, cursors);
  registerChange(app, context);
  registerDelete(app, context);
}

function registerCreate(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/ports',
    config: { access: 'vm:write', idempotent: true, etag: true, errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'createPort',
      summary: 'Publish a port of the guest under a URL',
      description: `An instance has at most ${PORTS_AN_INSTANCE} ports. The VM need not run: with \`wake_on_connect\` the first request starts it.`,
      tags: ['HTTP ports'],
      params: InstanceParams,
      body: CreatePortRequest,
      response: { 201: Port },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { port, access = 'private' } = request.body;
      const mutation = { action: 'port.create' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await createPort(tx, context.http, principal, id, { port, access });
        setEtag(reply, etagValue(row));
        return {
          status: 201,
          body: portView(context.http, row),
          target: row.id,
          data: portRecord(context.http, row),
        };
      });
      return reply.status(201).send(body);
    },
  });
}

function registerReads(app: App, { db, http }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/ports',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'listPorts',
      summary: "List an instance's HTTP ports",
      tags: ['HTTP ports'],
      params: InstanceParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Port) },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const id = instanceId(request.params);
      if (!(await findInstance(db, principal.org_id, id))) throw new AppError('NOT_FOUND');
      return pageOfList(cursors, principal, request, {
        route: 'ports',
        of: { instance_id: id },
        list: (before, count) => listPorts(db, id, before, count),
        show: (row) => portView(http, row),
      });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/ports/:port_id',
    config: { access: 'vm:read', etag: true },
    schema: {
      operationId: 'getPort',
      summary: 'Get an HTTP port',
      tags: ['HTTP ports'],
      params: PortParams,
      response: { 200: Port },
    },
    handler: async (request, reply) => {
      const { instance_id, id } = portRef(request.params);
      const instance = await findInstance(db, principalOf(request).org_id, instance_id);
      const row = instance && (await findPort(db, instance_id, id));
      if (!row) throw new AppError('NOT_FOUND');
      setEtag(reply, etagValue(row));
      return portView(http, row);
    },
  });
}

function registerChange(app: App, context: AppContext): void {
  app.route({
    method: 'PATCH',
    url: '/v1/instances/:id/ports/:port_id',
    config: { access: 'vm:write', etag: true, errors: ['CONFLICT', 'PRECONDITION_FAILED'] },
    schema: {
      operationId: 'changePort',
      summary: 'Change who has access to an HTTP port',
      description: 'From `public` to `private`: requests and open connections without access end within 5 s.',
      tags: ['HTTP ports'],
      params: PortParams,
      body: ChangePortRequest,
      response: { 200: Port },
    },
    handler: async (request, reply) => {
      const place = portRef(request.params);
      const { access } = request.body;
      const mutation = { action: 'port.change' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await changeAccess(tx, context.http, principal, place, access, checkOf(request));
        setEtag(reply, etagValue(row));
        return {
          status: 200,
          body: portView(context.http, row),
          target: row.id,
          data: portRecord(context.http, row),
        };
      });
      return body;
    },
  });
}

function registerDelete(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id/ports/:port_id',
    config: { access: 'vm:write', errors: ['CONFLICT', 'PRECONDITION_FAILED'] },
    schema: {
      operationId: 'deletePort',
      summary: 'Delete an HTTP port; its hostname is never assigned again',
      tags: ['HTTP ports'],
      params: PortParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const place = portRef(request.params);
      await mutate(context, request, reply, { action: 'port.delete' }, async (tx, principal) => {
        const row = await removePort(tx, context.http, principal, place, checkOf(request));
        return { status: 204, body: null, target: row.id, data: portRecord(context.http, row) };
      });
      return reply.status(204).send(null);
    },
  });
}
