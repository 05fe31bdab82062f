/** Routes that show, start, stop, restart, suspend and flush the VM of an instance. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { AppError, invalid } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import { type App, type Mutation, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { closed, EmptyBody, InstanceParams, named, nullable, Time, wholeNumber } from '../http/schemas.ts';
import { vmView } from '../instances/model.ts';
import { instanceId } from '../instances/routes.ts';
import { Consistency, Vm } from '../instances/schemas.ts';
import { findInstance, type InstanceRow } from '../instances/store.ts';
import { awaitReceipt, type BegunFlush, beginFlush, stillHolds } from './flush-vm.ts';
import { resumeFailed } from './model.ts';
import type { CallResult } from './request-change.ts';
import { startVm } from './start-vm.ts';
import { restartVm, stopVm, suspendVm } from './stop-vm.ts';

const FlushReceipt = named('FlushReceipt', {
  generation: Type.Integer({ examples: [42] }),
  durable_at: nullable(Time),
  dirty_bytes: Type.Integer({ examples: [0] }),
  uploaded_bytes: Type.Integer({ examples: [4_194_304] }),
  segments: Type.Integer(),
  duration_ms: Type.Integer({ examples: [180] }),
  consistency: Consistency,
});

const DEFAULT_WAIT_S = 30;
const MAX_WAIT_S = 60;

/** The state that calls change: the boot and the VM's state. The disk and the guest change by themselves. */
function etagValue({ id, vm_id, boot, state }: InstanceRow) {
  return { instance_id: id, id: vm_id, boot: boot ?? 0, state: state ?? 'stopped' };
}

function answerWith(reply: FastifyReply, row: InstanceRow) {
  setEtag(reply, etagValue(row));
  return vmView(row);
}

export function registerVm(app: App, context: AppContext): void {
  registerRead(app, context);
  registerStart(app, context);
  registerMoves(app, context);
  registerStop(app, context);
  registerFlush(app, context);
}

function registerRead(app: App, { db, hub }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/vm',
    config: { access: 'vm:read', etag: true },
    schema: {
      operationId: 'getVm',
      summary: 'Get the VM; with `wait`, once it reaches that state, fails, or the timeout passes',
      tags: ['VM'],
      params: InstanceParams,
      querystring: closed({
        wait: Type.Optional(
          Type.Unsafe<'running' | 'stopped' | 'suspended'>({
            type: 'string',
            enum: ['running', 'stopped', 'suspended'],
            description: 'Answer when the VM reaches this state',
          }),
        ),
        timeout_seconds: Type.Optional(
          wholeNumber(
            { minimum: 1, maximum: MAX_WAIT_S, default: DEFAULT_WAIT_S },
            'How long to wait; only with `wait`',
          ),
        ),
      }),
      response: { 200: Vm },
    },
    handler: async (request, reply) => {
      const { org_id } = principalOf(request);
      const { wait } = request.query;
      const timeout_s = readTimeout(request.query.timeout_seconds, wait !== undefined);
      const id = instanceId(request.params);
      const read = async () => {
        const row = await hub.shared(`${org_id} ${id}`, () => findInstance(db, org_id, id));
        if (!row) throw new AppError('NOT_FOUND');
        return row;
      };
      const first = await read();
      if (wait === undefined) return answerWith(reply, first);
      const reached = (row: InstanceRow) =>
        [wait, 'failed'].includes(row.state ?? 'stopped') || (wait === 'running' && resumeFailed(row));
      if (reached(first)) return answerWith(reply, first);
      const settled = async () => {
        const row = await read();
        return reached(row) ? row : undefined;
      };
      const found = await hub.waitFor('instance', id, timeout_s * 1000, settled, disconnectSignal(reply));
      return answerWith(reply, found ?? (await read()));
    },
  });
}

function readTimeout(text: string | undefined, waiting: boolean): number {
  if (text === undefined) return DEFAULT_WAIT_S;
  const seconds = Number(text);
  if (!waiting) throw invalid('timeout_seconds', 'needs wait');
  if (seconds < 1 || seconds > MAX_WAIT_S) throw invalid('timeout_seconds', `must be 1 to ${MAX_WAIT_S}`);
  return seconds;
}

/** Calls to a running VM, which its state accepts or refuses. */
const MOVES = [
  {
    verb: 'restart',
    operationId: 'restartVm',
    summary: 'Reboot the guest; the VM and its disk stay, and nothing is flushed',
    move: restartVm,
  },
  {
    verb: 'suspend',
    operationId: 'suspendVm',
    summary: 'Save memory and disk, then end the VM; the next start resumes it',
    move: suspendVm,
  },
] as const;

function describe(operationId: string, summary: string) {
  return { operationId, summary, tags: ['VM'], params: InstanceParams, body: EmptyBody };
}

function unlessChanged(request: FastifyRequest) {
  return (found: InstanceRow) => requireMatch(request, etagValue(found));
}

function outcomeOf({ status, row }: CallResult) {
  return {
    status,
    body: vmView(row),
    target: row.id,
    unchanged: status === 200,
    data: { vm_id: row.vm_id },
  };
}

function registerStart(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm',
    config: {
      access: 'vm:write',
      idempotent: true,
      errors: ['CONFLICT', 'PRECONDITION_FAILED', 'QUOTA_EXCEEDED'],
    },
    schema: {
      ...describe('startVm', 'Start the VM'),
      response: { 200: Vm, 202: Vm },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const mutation = { action: 'vm.start' };
      const { status, body } = await mutate(context, request, reply, mutation, async (tx, principal) =>
        outcomeOf(await startVm(tx, context.quotas, principal, id, unlessChanged(request))),
      );
      return reply.status(status).send(body);
    },
  });
}

function registerMoves(app: App, context: AppContext): void {
  for (const { verb, operationId, summary, move } of MOVES) {
    app.route({
      method: 'POST',
      url: `/v1/instances/:id/vm/${verb}`,
      config: {
        access: 'vm:write',
        idempotent: true,
        errors: ['CONFLICT', 'VM_NOT_RUNNING', 'PRECONDITION_FAILED'],
      },
      schema: {
        ...describe(operationId, summary),
        response: { 202: Vm },
      },
      handler: async (request, reply) => {
        const id = instanceId(request.params);
        const mutation = { action: `vm.${verb}` };
        const { body } = await mutate(context, request, reply, mutation, async (tx, principal) =>
          outcomeOf(await move(tx, principal, id, unlessChanged(request))),
        );
        return reply.status(202).send(body);
      },
    });
  }
}

function registerStop(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id/vm',
    config: { access: 'vm:write', errors: ['CONFLICT', 'PRECONDITION_FAILED'] },
    schema: {
      ...describe('stopVm', 'Stop the VM; its disk persists'),
      querystring: closed({
        force: Type.Optional(
          Type.Unsafe<'true' | 'false'>({
            type: 'string',
            enum: ['true', 'false'],
            description: 'true: halt at once, without a shutdown of the guest',
          }),
        ),
      }),
      response: { 200: Vm, 202: Vm },
    },
    handler: async (request, reply) => {
      const force = request.query.force === 'true';
      const id = instanceId(request.params);
      const mutation = { action: 'vm.stop' };
      const { status, body } = await mutate(context, request, reply, mutation, async (tx, principal) =>
        outcomeOf(await stopVm(tx, principal, id, unlessChanged(request), force)),
      );
      return reply.status(status).send(body);
    },
  });
}

function registerFlush(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/flush',
    config: { access: 'vm:write', idempotent: true, errors: ['CONFLICT'] },
    schema: {
      ...describe('flushVm', 'Flush the disk: make everything written so far durable'),
      response: { 200: FlushReceipt },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      // The Idempotency-Key keeps the flush that was begun: a replay waits for the same receipt, unless that flush failed.
      const mutation: Mutation = {
        action: 'vm.flush',
        holds: (tx, kept) => stillHolds(tx, kept as BegunFlush),
      };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const { begun, generation } = await beginFlush(tx, principal, id);
        return { status: 200, body: begun, target: id, data: { after_generation: generation } };
      });
      return awaitReceipt(context, id, body, disconnectSignal(reply));
    },
  });
}
