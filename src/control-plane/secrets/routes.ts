/**
 * Routes that set, list and delete the secrets of an instance. No answer contains a secret's value.
 *
 * A guest has only a placeholder for each secret. Where it sends an HTTPS request to a server that the secret names (in
 * the API: `hosts`), the egress proxy replaces the placeholder in the header fields by the value.
 */
import { Type } from 'typebox';
import { SECRET_HOSTS_MAX, SECRET_VALUE_MAX_BYTES, SECRETS_MAX } from '../../protocol/host-types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { type App, mutate } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import { EmptyBody, InstanceParams, NoContent, named, pageOf, pageQuery, Time } from '../http/schemas.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance } from '../instances/store.ts';
import { removeSecret, setSecret } from './change-secrets.ts';
import { SECRET_HOST_LENGTH_MAX } from './model.ts';
import { listSecrets, type SecretRow } from './store.ts';

const EXAMPLE_NAME = 'OPENAI_API_KEY';
const EXAMPLE_HOSTS = ['api.openai.com', '*.example.com'];
const HOSTS_WORDS =
  'Host names, exact or `*.` and a domain: the value is sent to no other host. A host must also be allowed by the egress policy';

const Secret = named('Secret', {
  name: Type.String({ examples: [EXAMPLE_NAME] }),
  hosts: Type.Array(Type.String(), { description: HOSTS_WORDS, examples: [EXAMPLE_HOSTS] }),
  has_value: Type.Boolean({
    description: 'False after a fork without values: the VM has no variable of this secret until it is set',
    examples: [true],
  }),
  updated_at: Time,
});
const SetSecretRequest = named('SetSecretRequest', {
  value: Type.String({
    maxLength: SECRET_VALUE_MAX_BYTES,
    description: 'Without control characters. No response, log or audit entry contains it',
    examples: ['sk-proj-9f2b6d1c'],
  }),
  hosts: Type.Array(Type.String({ maxLength: SECRET_HOST_LENGTH_MAX }), {
    minItems: 1,
    maxItems: SECRET_HOSTS_MAX,
    description: HOSTS_WORDS,
    examples: [EXAMPLE_HOSTS],
  }),
});
const SecretParams = Type.Object({
  ...InstanceParams.properties,
  name: Type.String({
    description: 'The name of the secret: 1 to 64 of `A` to `Z`, digits and `_`; a letter first',
  }),
});

const show = ({ name, hosts, has_value, updated_at }: SecretRow) => ({
  name,
  hosts,
  has_value,
  updated_at: rfc3339(updated_at),
});

export function registerSecrets(app: App, context: AppContext, cursors: CursorSealer): void {
  registerSet(app, context);
  registerList(app, context, cursors);
  registerDelete(app, context);
}

function registerSet(app: App, context: AppContext): void {
  app.route({
    method: 'PUT',
    url: '/v1/instances/:id/secrets/:name',
    config: { access: 'vm:write', errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'setSecret',
      summary: 'Create a secret, or replace its value and hosts',
      description: `In the guest, \`BERTH_SECRET_<NAME>\` holds a placeholder. The host replaces it by the value in headers of HTTPS requests to \`hosts\`. New sessions have the variable within 10 s. An instance has at most ${SECRETS_MAX} secrets.`,
      tags: ['Secrets'],
      params: SecretParams,
      body: SetSecretRequest,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const place = { instance_id: instanceId(request.params), name: request.params.name };
      const { body } = request;
      await mutate(context, request, reply, { action: 'secret.set' }, async (tx, principal) => {
        const { name, hosts } = await setSecret(tx, context.secrets, principal, place, body);
        return { status: 204, body: null, target: place.instance_id, data: { name, hosts } };
      });
      return reply.status(204).send(null);
    },
  });
}

function registerList(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/secrets',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'listSecrets',
      summary: "List an instance's secrets, without values",
      tags: ['Secrets'],
      params: InstanceParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Secret) },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const id = instanceId(request.params);
      if (!(await findInstance(db, principal.org_id, id))) throw new AppError('NOT_FOUND');
      return pageOfList(cursors, principal, request, {
        route: 'secrets',
        of: { instance_id: id },
        list: (before, count) => listSecrets(db, id, before, count),
        show,
      });
    },
  });
}

function registerDelete(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id/secrets/:name',
    config: { access: 'vm:write', errors: ['CONFLICT'] },
    schema: {
      operationId: 'deleteSecret',
      summary: 'Delete a secret; new sessions do not have its variable',
      tags: ['Secrets'],
      params: SecretParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const place = { instance_id: instanceId(request.params), name: request.params.name };
      await mutate(context, request, reply, { action: 'secret.delete' }, async (tx, principal) => {
        const { name, hosts } = await removeSecret(tx, principal, place);
        return { status: 204, body: null, target: place.instance_id, data: { name, hosts } };
      });
      return reply.status(204).send(null);
    },
  });
}
