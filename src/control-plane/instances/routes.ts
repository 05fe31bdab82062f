/**
 * Routes that create, list, show, change and delete instances. The route that forks an instance is in disks/routes.ts.
 */
import { type Static, Type } from 'typebox';
import { checkedEntries } from '../../shared/egress-policy.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { type InstanceId, isId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import {
  DNS_LABEL_PATTERN,
  IMAGE_PATTERN,
  LABEL_FILTER_PATTERN,
  NO_NUL_PATTERN,
  PRINTABLE_PATTERN,
} from '../http/errors.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import { closed, EmptyBody, InstanceParams, named, nullable, pageOf, pageQuery } from '../http/schemas.ts';
import { deleteSecrets } from '../secrets/store.ts';
import { awaitGrowth, changeInstance, deleteInstance } from './change-instance.ts';
import { createInstance } from './create-instance.ts';
import { diskView, instanceView, vmView } from './model.ts';
import {
  EgressAllow,
  EgressModeSchema,
  GenerationsKeep,
  Instance,
  Labels,
  PlacementRequest,
  RestartPolicySchema,
  VmStateSchema,
} from './schemas.ts';
import { findInstance, type InstanceChange, listInstances } from './store.ts';

export const DnsLabel = Type.String({
  maxLength: 63,
  pattern: DNS_LABEL_PATTERN,
  description: 'A DNS label',
  examples: ['web-1'],
});
const AutoFlush = nullable(
  Type.Integer({
    minimum: 5,
    maximum: 86_400,
    description: 'Flush a running VM this often; null: never',
    examples: [60],
  }),
);
const Keep = nullable(GenerationsKeep);
/** Where a request gives none, or null. */
const DEFAULT_KEEP: Static<typeof GenerationsKeep> = { last: 24, daily_days: 14 };
const IdleTimeout = nullable(
  Type.Integer({
    minimum: 60,
    maximum: 2_592_000,
    description:
      'Stop the VM after this time without an SSH connection, HTTP request, forwarded port, console, command, start, restart or flush; null: never',
  }),
  { examples: [null] },
);
const WakeOnConnect = Type.Boolean({
  description:
    'A connection to the SSH port of a stopped VM, or a request to one of its HTTP ports, starts the VM and waits until the guest answers',
  examples: [false],
});
const CPUS = { minimum: 1, maximum: 16, examples: [2] };
const MEMORY_MIB = { minimum: 128, maximum: 65_536, examples: [1024] };
const DISK_GIB = { minimum: 1, maximum: 1024, examples: [8] };
const WHILE_STOPPED = 'Can be changed while the VM is stopped; applies from the next start';

const USER_DATA_BYTES = 65_536;
const UserData = Type.String({
  minLength: 1,
  maxLength: USER_DATA_BYTES,
  pattern: NO_NUL_PATTERN,
  description:
    'A script that root runs once, at the first boot, with /bin/sh unless its first line names another interpreter; at most 64 KiB in UTF-8. Its output is in the console log. The API never shows it, and a fork does not run it',
  examples: ['#!/bin/sh\napt-get update\n'],
});

const EgressRequest = closed({ mode: Type.Optional(EgressModeSchema), allow: Type.Optional(EgressAllow) });

const CreateInstanceRequest = named('CreateInstanceRequest', {
  name: DnsLabel,
  image: Type.Optional(
    Type.String({ maxLength: 63, pattern: IMAGE_PATTERN, default: 'debian-12', examples: ['debian-12'] }),
  ),
  cpus: Type.Optional(Type.Integer(CPUS)),
  memory_mib: Type.Optional(Type.Integer(MEMORY_MIB)),
  disk_gib: Type.Optional(Type.Integer(DISK_GIB)),
  labels: Type.Optional(Labels),
  idle_timeout_seconds: Type.Optional(IdleTimeout),
  wake_on_connect: Type.Optional(WakeOnConnect),
  restart: Type.Optional(RestartPolicySchema),
  auto_flush_seconds: Type.Optional(AutoFlush),
  generations_keep: Type.Optional(Keep),
  egress: Type.Optional(EgressRequest),
  placement: Type.Optional(PlacementRequest),
  user_data: Type.Optional(UserData),
});
const ChangeInstanceRequest = named('ChangeInstanceRequest', {
  name: Type.Optional(DnsLabel),
  labels: Type.Optional(Labels),
  idle_timeout_seconds: Type.Optional(IdleTimeout),
  wake_on_connect: Type.Optional(WakeOnConnect),
  restart: Type.Optional(RestartPolicySchema),
  auto_flush_seconds: Type.Optional(AutoFlush),
  generations_keep: Type.Optional(Keep),
  egress: Type.Optional(EgressRequest),
  placement: Type.Optional(PlacementRequest),
  cpus: Type.Optional(Type.Integer({ ...CPUS, description: WHILE_STOPPED })),
  memory_mib: Type.Optional(Type.Integer({ ...MEMORY_MIB, description: WHILE_STOPPED })),
  disk_gib: Type.Optional(
    Type.Integer({
      ...DISK_GIB,
      description:
        'Can only grow. If the VM runs, the answer waits up to 15 s until its root file system has grown; `disk.growth` says whether it has. Otherwise it grows at the next boot',
    }),
  ),
});

/** The instance of a path. @throws AppError NOT_FOUND also where the id is malformed */
export function instanceId(params: { id: string }): InstanceId {
  if (!isId('inst', params.id)) throw new AppError('NOT_FOUND');
  return params.id;
}

function keepColumns({ last, daily_days }: Static<typeof GenerationsKeep>) {
  return { keep_last: last, keep_daily_days: daily_days };
}

/** What is absent stays as it is. @throws AppError INVALID_REQUEST naming the entry */
function egressColumns({ mode, allow }: Static<typeof EgressRequest>) {
  return {
    ...(mode === undefined ? {} : { egress_mode: mode }),
    ...(allow === undefined ? {} : { egress_allow: checkedEntries(allow) }),
  };
}

/** What is absent stays as it is. */
function placementColumns({ host_labels, tolerations }: Static<typeof PlacementRequest>) {
  return {
    ...(host_labels === undefined ? {} : { host_labels }),
    ...(tolerations === undefined ? {} : { tolerations: [...new Set(tolerations)] }),
  };
}

export function registerInstances(app: App, context: AppContext, cursors: CursorSealer): void {
  registerCreate(app, context);
  registerList(app, context, cursors);
  registerGet(app, context);
  registerChange(app, context);
  registerDelete(app, context);
}

function registerCreate(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances',
    config: {
      access: 'instances:write',
      idempotent: true,
      etag: true,
      errors: ['CONFLICT', 'QUOTA_EXCEEDED'],
    },
    schema: {
      operationId: 'createInstance',
      summary: 'Create an instance',
      tags: ['Instances'],
      body: CreateInstanceRequest,
      response: { 201: Instance },
    },
    handler: async (request, reply) => {
      const { body } = request;
      const wanted = {
        name: body.name,
        image: body.image ?? 'debian-12',
        cpus: body.cpus ?? 1,
        memory_mib: body.memory_mib ?? 512,
        disk_gib: body.disk_gib ?? 8,
        labels: body.labels ?? {},
        idle_timeout_seconds: body.idle_timeout_seconds ?? null,
        wake_on_connect: body.wake_on_connect ?? false,
        restart: body.restart ?? ('never' as const),
        auto_flush_seconds: body.auto_flush_seconds === undefined ? 60 : body.auto_flush_seconds,
        ...keepColumns(body.generations_keep ?? DEFAULT_KEEP),
        egress_mode: 'open' as const,
        egress_allow: [],
        ...egressColumns(body.egress ?? {}),
        host_labels: {},
        tolerations: [],
        ...placementColumns(body.placement ?? {}),
        user_data: body.user_data ?? null,
      };
      if (Buffer.byteLength(wanted.user_data ?? '') > USER_DATA_BYTES)
        throw invalid('user_data', 'must be at most 64 KiB in UTF-8');
      const mutation = { action: 'instance.create' };
      const made = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await createInstance(tx, principal, context, wanted);
        setEtag(reply, row.version);
        return { status: 201, body: instanceView(row), target: row.id, data: { name: row.name } };
      });
      return reply.status(201).send(made.body);
    },
  });
}

function registerList(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/instances',
    config: { access: 'instances:read' },
    schema: {
      operationId: 'listInstances',
      summary: "List the organisation's instances",
      tags: ['Instances'],
      querystring: pageQuery(200, {
        name: Type.Optional(
          Type.String({
            maxLength: 63,
            pattern: PRINTABLE_PATTERN,
            description: 'Only the instance of exactly this name',
          }),
        ),
        label: Type.Optional(
          Type.Array(
            Type.String({ maxLength: 320, pattern: LABEL_FILTER_PATTERN, examples: ['env=production'] }),
            {
              maxItems: 16,
              description:
                'Only those with this label: `key=value`, or `key` with any value; repeatable: all must match',
            },
          ),
        ),
        state: Type.Optional(VmStateSchema),
      }),
      response: { 200: pageOf(Instance) },
    },
    // A parameter that is given once is no list.
    preValidation: async ({ query }) => {
      if (typeof query.label === 'string') query.label = [query.label];
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'instances',
        list: (before, count) => listInstances(db, principal.org_id, request.query, before, count),
        show: instanceView,
      });
    },
  });
}

function registerGet(app: App, { db }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id',
    config: { access: 'instances:read', etag: true },
    schema: {
      operationId: 'getInstance',
      summary: 'Get an instance',
      tags: ['Instances'],
      params: InstanceParams,
      response: { 200: Instance },
    },
    handler: async (request, reply) => {
      const row = await findInstance(db, principalOf(request).org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      setEtag(reply, row.version);
      return instanceView(row);
    },
  });
}

function registerChange(app: App, context: AppContext): void {
  app.route({
    method: 'PATCH',
    url: '/v1/instances/:id',
    config: {
      access: 'instances:write',
      etag: true,
      errors: ['CONFLICT', 'PRECONDITION_FAILED', 'QUOTA_EXCEEDED'],
    },
    schema: {
      operationId: 'changeInstance',
      summary: 'Change an instance',
      tags: ['Instances'],
      params: InstanceParams,
      body: ChangeInstanceRequest,
      response: { 200: Instance },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { generations_keep: keep, egress, placement, ...rest } = request.body;
      const change = {
        ...rest,
        ...(keep === undefined ? {} : keepColumns(keep ?? DEFAULT_KEEP)),
        ...egressColumns(egress ?? {}),
        ...placementColumns(placement ?? {}),
      } as InstanceChange;
      const mutation = { action: 'instance.change' };
      const { org_id } = principalOf(request);
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await changeInstance(tx, context.quotas, principal, id, change, (version) =>
          requireMatch(request, version),
        );
        setEtag(reply, row.version);
        return { status: 200, body: instanceView(row), target: id, data: { change } };
      });
      if (change.disk_gib === undefined) return body;
      const row = await awaitGrowth(context, org_id, id, disconnectSignal(reply));
      return row ? { ...body, disk: diskView(row), vm: vmView(row) } : body;
    },
  });
}

function registerDelete(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id',
    config: { access: 'instances:write', errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'deleteInstance',
      summary: 'Delete an instance and its disk',
      tags: ['Instances'],
      params: InstanceParams,
      body: EmptyBody,
      response: { 202: Instance },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const mutation = { action: 'instance.delete' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await deleteInstance(tx, principal, id, (version) => requireMatch(request, version));
        await deleteSecrets(tx, id);
        return { status: 202, body: instanceView(row), target: id, data: { name: row.name } };
      });
      return reply.status(202).send(body);
    },
  });
}
