import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { Batched } from '../../db/batched.ts';
import { findInstances, type InstanceRow } from '../../instances/store.ts';
import { vmView } from '../../instances/view.ts';
import { AppError, invalid } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { awaitReceipt, type BegunFlush, beginFlush, stillHolds } from '../../vms/flush-vm.ts';
import type { CallResult } from '../../vms/request-change.ts';
import { restartVm } from '../../vms/restart-vm.ts';
import { startVm } from '../../vms/start-vm.ts';
import { stopVm } from '../../vms/stop-vm.ts';
import { suspendVm } from '../../vms/suspend-vm.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { requireMatch, setEtag } from '../etag.ts';
import { hangUp } from '../hang-up.ts';
import { mutate } from '../mutate.ts';
import {
  COMMON,
  Consistency,
  closed,
  EmptyBody,
  errors,
  InstanceParams,
  named,
  nullable,
  Time,
  Vm,
  wholeNumber,
} from '../schemas.ts';
import { instanceId } from './instances.ts';

const FlushReceipt = named('FlushReceipt', {
  generation: Type.Integer(),
  durable_at: nullable(Time),
  dirty_bytes: Type.Integer(),
  uploaded_bytes: Type.Integer(),
  segments: Type.Integer(),
  duration_ms: Type.Integer(),
  consistency: Consistency,
});

const DEFAULT_WAIT_S = 30;
const MAX_WAIT_S = 60;

/** What a call changes of a VM: which boot it is, and its state. What its disk and guest do by themselves is not. */
function etagValue({ id, vm_id, boot, state }: InstanceRow) {
  return { instance_id: id, id: vm_id, boot: boot ?? 0, state: state ?? 'stopped' };
}

function answerWith(reply: FastifyReply, row: InstanceRow) {
  setEtag(reply, etagValue(row));
  return vmView(row);
}

export function registerVm(app: App, context: AppContext): void {
  registerRead(app, context);
  registerCalls(app, context);
}

function registerRead(app: App, { db, hub }: AppContext): void {
  const instances = new Batched((ids) => findInstances(db, ids));
  /** Look-ups begun while the caller was being authenticated. */
  const early = new WeakMap<FastifyRequest, Promise<InstanceRow | undefined>>();
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/vm',
    config: {
      access: 'vm:read',
      early: (request) => {
        const { id } = request.params as { readonly id: string };
        if (!isId('inst', id)) return;
        const found = instances.find(id);
        found.catch(() => undefined); // whoever awaits it hears of it
        early.set(request, found);
      },
    },
    schema: {
      operationId: 'getVm',
      summary: 'The state of the VM; with `wait`, once it is reached, the VM failed, or the time is over',
      tags: ['VM'],
      params: InstanceParams,
      querystring: closed({
        wait: Type.Optional(
          Type.Unsafe<'running' | 'stopped' | 'suspended'>({
            type: 'string',
            enum: ['running', 'stopped', 'suspended'],
            description: 'Answer when this state is reached',
          }),
        ),
        timeout_seconds: Type.Optional(
          wholeNumber(
            { minimum: 1, maximum: MAX_WAIT_S, default: DEFAULT_WAIT_S },
            'For how long; goes with `wait`',
          ),
        ),
      }),
      response: { 200: Vm, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request, reply) => {
      const { org_id } = principalOf(request);
      const { wait } = request.query;
      const timeout_s = readTimeout(request.query.timeout_seconds, wait !== undefined);
      const id = instanceId(request.params);
      const of = async (found: Promise<InstanceRow | undefined>) => {
        const row = await found;
        if (row?.org_id !== org_id) throw new AppError('NOT_FOUND');
        return row;
      };
      const read = () => of(instances.find(id));
      const first = await of(early.get(request) ?? instances.find(id));
      if (wait === undefined) return answerWith(reply, first);
      const reached = (row: InstanceRow) => [wait, 'failed'].includes(row.state ?? 'stopped');
      if (reached(first)) return answerWith(reply, first);
      const settled = async () => {
        const row = await read();
        return reached(row) ? row : undefined;
      };
      const found = await hub.waitFor('instance', id, timeout_s * 1000, settled, hangUp(reply));
      return answerWith(reply, found ?? (await read()));
    },
  });
}

function readTimeout(text: string | undefined, waiting: boolean): number {
  if (text === undefined) return DEFAULT_WAIT_S;
  const seconds = Number(text);
  if (!waiting) throw invalid('timeout_seconds', 'goes with wait');
  if (seconds < 1 || seconds > MAX_WAIT_S) throw invalid('timeout_seconds', `must be 1 to ${MAX_WAIT_S}`);
  return seconds;
}

/** What is asked of a running VM, accepted or refused by its state. */
const MOVES = [
  {
    verb: 'restart',
    operationId: 'restartVm',
    summary: 'Soft reboot: same VM, same disk, nothing flushed',
    move: restartVm,
  },
  {
    verb: 'suspend',
    operationId: 'suspendVm',
    summary: 'Save memory and disk together, then end the VM; a start goes on from there',
    move: suspendVm,
  },
] as const;

function registerCalls(app: App, context: AppContext): void {
  const { db, hub } = context;
  const describe = (operationId: string, summary: string) => ({
    operationId,
    summary,
    tags: ['VM'],
    params: InstanceParams,
    body: EmptyBody,
  });
  const unlessChanged = (request: FastifyRequest) => (found: InstanceRow) =>
    requireMatch(request, etagValue(found));
  const outcome = ({ status, row }: CallResult) => ({
    status,
    body: vmView(row),
    target: row.id,
    unchanged: status === 200,
    data: { vm_id: row.vm_id },
  });

  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm',
    config: { access: 'vm:write', idempotent: true },
    schema: {
      ...describe('startVm', 'Start the VM'),
      response: {
        200: Vm,
        202: Vm,
        ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT', 'PRECONDITION_FAILED', 'QUOTA_EXCEEDED'),
      },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { status, body } = await mutate(
        context,
        request,
        reply,
        { action: 'vm.start' },
        async (tx, principal) =>
          outcome(await startVm(tx, context.quotas, principal, id, unlessChanged(request))),
      );
      return reply.status(status).send(body);
    },
  });
  for (const { verb, operationId, summary, move } of MOVES) {
    app.route({
      method: 'POST',
      url: `/v1/instances/:id/vm/${verb}`,
      config: { access: 'vm:write', idempotent: true },
      schema: {
        ...describe(operationId, summary),
        response: {
          202: Vm,
          ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT', 'VM_NOT_RUNNING', 'PRECONDITION_FAILED'),
        },
      },
      handler: async (request, reply) => {
        const id = instanceId(request.params);
        const { body } = await mutate(
          context,
          request,
          reply,
          { action: `vm.${verb}` },
          async (tx, principal) => outcome(await move(tx, principal, id, unlessChanged(request))),
        );
        return reply.status(202).send(body);
      },
    });
  }
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id/vm',
    config: { access: 'vm:write' },
    schema: {
      ...describe('stopVm', 'Stop the VM; the disk persists'),
      querystring: closed({
        force: Type.Optional(
          Type.Unsafe<'true' | 'false'>({
            type: 'string',
            enum: ['true', 'false'],
            description: "true skips the guest's part",
          }),
        ),
      }),
      response: { 200: Vm, 202: Vm, ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT', 'PRECONDITION_FAILED') },
    },
    handler: async (request, reply) => {
      const force = request.query.force === 'true';
      const id = instanceId(request.params);
      const { status, body } = await mutate(
        context,
        request,
        reply,
        { action: 'vm.stop' },
        async (tx, principal) => outcome(await stopVm(tx, principal, id, unlessChanged(request), force)),
      );
      return reply.status(status).send(body);
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/flush',
    config: { access: 'vm:write', idempotent: true },
    schema: {
      ...describe('flushVm', 'Write dirty disk pages to object storage now'),
      response: { 200: FlushReceipt, ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT') },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      // What is kept for the key is the flush that was begun: a replay waits for the same receipt, unless it failed.
      const { body } = await mutate(
        context,
        request,
        reply,
        { action: 'vm.flush', holds: (tx, kept) => stillHolds(tx, kept as BegunFlush) },
        async (tx, principal) => ({
          status: 200,
          body: await beginFlush(tx, principal, id),
          target: id,
        }),
      );
      return awaitReceipt(db, hub, id, body, hangUp(reply));
    },
  });
}
