/** Serves the generations of an instance's disk: list, name, pin, restore and fork. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { GENERATION_TRIGGERS } from '../db/column-types.ts';
import { peek, principalOf } from '../http/access.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  InstanceParams,
  idOf,
  named,
  nameText,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  pathParameter,
  Time,
} from '../http/schemas.ts';
import { changeGeneration, restoreInstance } from '../instances/change-instance.ts';
import { forkInstance } from '../instances/create-instance.ts';
import { generationView, instanceView } from '../instances/model.ts';
import { DnsLabel, instanceId } from '../instances/routes.ts';
import { Consistency, GenerationNumber, Instance } from '../instances/schemas.ts';
import { findInstance } from '../instances/store.ts';
import { inheritSecrets, requireSecretsWrite } from '../secrets/change-secrets.ts';
import { listGenerations } from './generation-store.ts';

const EXAMPLE_NAME = 'before the upgrade';
const GenerationOrigin = named('GenerationOrigin', {
  instance_id: idOf('inst'),
  generation: GenerationNumber,
});
const Generation = named('Generation', {
  generation: Type.Integer({ examples: [42] }),
  created_at: Time,
  bytes: Type.Integer({ description: 'The bytes that its flush uploaded', examples: [4_194_304] }),
  consistency: Consistency,
  name: nullable(Type.String({ examples: [EXAMPLE_NAME] })),
  pinned: Type.Boolean({ description: 'Kept regardless of `generations_keep`' }),
  trigger: oneOf(GENERATION_TRIGGERS, {
    description:
      'What made it: a requested or an automatic flush, the flush of a stop or a suspend, an import of a file, a fork, or a restore',
    examples: ['auto'],
  }),
  origin: nullable(GenerationOrigin, {
    description: 'Of a fork or a restore: the generation whose content it has; it may be gone',
    examples: [null],
  }),
  dirty_bytes: nullable(
    Type.Integer({ description: 'The bytes that its flush saved; null without a flush', examples: [65_536] }),
  ),
  segments: nullable(
    Type.Integer({ description: 'The objects that its flush uploaded; null without a flush', examples: [1] }),
  ),
  duration_ms: nullable(
    Type.Integer({
      description: 'How long its flush took; null unless a caller requested it',
      examples: [180],
    }),
  ),
});
const ChangeGenerationRequest = named('ChangeGenerationRequest', {
  name: Type.Optional(nullable(nameText(EXAMPLE_NAME))),
  pinned: Type.Optional(Type.Boolean()),
});
const RestoreRequest = named('RestoreRequest', { generation: GenerationNumber });
const ForkRequest = named('ForkRequest', {
  name: DnsLabel,
  generation: Type.Optional(GenerationNumber),
  secrets: Type.Optional(
    Type.Boolean({
      default: false,
      description:
        'Whether the fork gets the values of the secrets too, which needs `vm:write`; without them it has names and hosts only',
      examples: [false],
    }),
  ),
});
const GenerationParams = Type.Object({
  ...InstanceParams.properties,
  generation: pathParameter('The number of the generation'),
});

/** @throws AppError NOT_FOUND */
function generationNumber({ generation }: { generation: string }): number {
  if (!/^[1-9][0-9]{0,14}$/.test(generation)) throw new AppError('NOT_FOUND');
  return Number(generation);
}

export function registerGenerations(app: App, context: AppContext, cursors: CursorSealer): void {
  registerList(app, context, cursors);
  registerChange(app, context);
  registerRestore(app, context);
  registerFork(app, context);
}

function registerList(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/generations',
    config: { access: 'instances:read' },
    schema: {
      operationId: 'listGenerations',
      summary: 'List the generations of the disk, which can be restored or forked',
      tags: ['Generations'],
      params: InstanceParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Generation) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'generations',
        of: { instance: request.params.id },
        list: async (before: string | null, count: number) => {
          const id = instanceId(request.params);
          if (!(await findInstance(db, principal.org_id, id))) throw new AppError('NOT_FOUND');
          const rows = await listGenerations(db, id, before === null ? null : Number(before), count);
          return rows.map((row) => ({ ...row, id: String(row.generation) }));
        },
        show: generationView,
      });
    },
  });
}

function registerChange(app: App, context: AppContext): void {
  app.route({
    method: 'PATCH',
    url: '/v1/instances/:id/generations/:generation',
    config: { access: 'instances:write', errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'changeGeneration',
      summary: 'Name or pin a generation',
      tags: ['Generations'],
      params: GenerationParams,
      body: ChangeGenerationRequest,
      response: { 200: Generation },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const generation = generationNumber(request.params);
      const change = request.body as { name?: string | null; pinned?: boolean };
      const mutation = { action: 'generation.change' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await changeGeneration(tx, principal, id, generation, change);
        return { status: 200, body: generationView(row), target: id, data: { generation, change } };
      });
      return body;
    },
  });
}

function registerRestore(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/restore',
    config: {
      access: 'instances:write',
      idempotent: true,
      etag: true,
      errors: ['CONFLICT', 'PRECONDITION_FAILED'],
    },
    schema: {
      operationId: 'restoreInstance',
      summary: 'Restore an older generation, as a new one; the VM must be stopped',
      tags: ['Generations'],
      params: InstanceParams,
      body: RestoreRequest,
      response: { 200: Instance },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { generation } = request.body;
      const mutation = { action: 'instance.restore' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await restoreInstance(tx, principal, id, generation, (version) =>
          requireMatch(request, version),
        );
        setEtag(reply, row.version);
        return { status: 200, body: instanceView(row), target: id, data: { generation } };
      });
      return body;
    },
  });
}

/** 403 comes before 400, so this precedes the validation of the body. @throws AppError FORBIDDEN */
async function refuseSecretsWithoutRight(request: FastifyRequest): Promise<void> {
  if (peek(request.body, 'secrets') === true) requireSecretsWrite(principalOf(request));
}

function registerFork(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/fork',
    config: {
      access: 'instances:write',
      idempotent: true,
      etag: true,
      errors: ['CONFLICT', 'QUOTA_EXCEEDED'],
    },
    preValidation: refuseSecretsWithoutRight,
    schema: {
      operationId: 'forkInstance',
      summary: 'Fork an instance: create one whose disk begins as a generation of this one',
      description:
        'The fork shares the data and copies none. Without `generation` it begins with the newest durable one, and `forked_from.dirty_bytes` tells at least how much a running parent had not flushed by then: flush first to include everything. It inherits size, image and settings, but not labels, keys, the host key or `wake_on_connect`. Secrets are inherited without values unless `secrets` is true.',
      tags: ['Generations'],
      params: InstanceParams,
      body: ForkRequest,
      response: { 201: Instance },
    },
    handler: async (request, reply) => {
      const from = instanceId(request.params);
      const { name, generation = null, secrets = false } = request.body;
      const mutation = { action: 'instance.fork' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const row = await forkInstance(tx, principal, context, from, { name, generation });
        setEtag(reply, row.version);
        await inheritSecrets(tx, context.secrets, { from, to: row.id, with_values: secrets });
        const data = { name, from, generation: row.generation, ...(secrets ? { secrets } : {}) };
        return { status: 201, body: instanceView(row), target: row.id, data };
      });
      return reply.status(201).send(body);
    },
  });
}
