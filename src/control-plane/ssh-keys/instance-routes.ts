/**
 * Routes of SSH access to instances: how to connect to the running VM, which keys may log in (the instance's key set),
 * and which keys of members a key set can contain.
 */
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { inPathOrganisation, pathOrganisation, principalOf } from '../http/access.ts';
import { type App, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  EXAMPLE_PUBLIC_KEY,
  Fingerprint,
  InstanceParams,
  idOf,
  KeyType,
  named,
  pageOf,
  pageQuery,
  pathIds,
} from '../http/schemas.ts';
import { type KeySet, readKeySet, replaceKeys } from '../instances/change-instance.ts';
import { instanceId } from '../instances/routes.ts';
import { HostKeySchema, SshAddress } from '../instances/schemas.ts';
import { findInstance } from '../instances/store.ts';
import { connectionDetails } from '../vms/connection-details.ts';
import { listMemberKeys } from './store.ts';

const ConnectionDetails = named('ConnectionDetails', {
  ...SshAddress.properties,
  user: Type.String({ examples: ['root'] }),
  host_keys: Type.Array(HostKeySchema),
  known_hosts: Type.Array(Type.String({ examples: [`[berth.example.org]:22001 ${EXAMPLE_PUBLIC_KEY}`] })),
  command: Type.String({ examples: ['ssh -p 22001 root@berth.example.org'] }),
  allowed_keys: Type.Integer({ description: 'How many keys may log in', examples: [1] }),
});
const KeySetMode = Type.Unsafe<'account' | 'explicit'>({ type: 'string', enum: ['account', 'explicit'] });
const KeySetKey = named('KeySetKey', {
  id: idOf('key'),
  name: Type.String({ examples: ['laptop'] }),
  type: KeyType,
  fingerprint: Fingerprint,
  owner_id: idOf('usr'),
});
const KeySetSchema = named('KeySet', { mode: KeySetMode, data: Type.Array(KeySetKey) });
const ReplaceKeys = Type.Union(
  [
    closed({ ssh_key_ids: Type.Array(idOf('key'), { maxItems: 200 }) }),
    closed({ mode: Type.Literal('account') }),
  ],
  { description: 'Either `ssh_key_ids`, or `mode` with the value `account`' },
);

export function registerInstanceSsh(app: App, context: AppContext, cursors: CursorSealer): void {
  registerDetails(app, context);
  registerKeySet(app, context);
  registerMemberKeys(app, context, cursors);
}

function registerDetails(app: App, { db }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/ssh',
    config: { access: 'vm:read', errors: ['VM_NOT_RUNNING', 'CONFLICT'] },
    schema: {
      operationId: 'getSsh',
      summary: 'Get the SSH connection details of the running VM',
      tags: ['SSH'],
      params: InstanceParams,
      response: { 200: ConnectionDetails },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const row = await findInstance(db, principal.org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const keys = await readKeySet(db, principal, row.id);
      return connectionDetails(row, keys.data.length);
    },
  });
}

function registerKeySet(app: App, context: AppContext): void {
  const { db } = context;
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/ssh-keys',
    config: { access: 'ssh_keys:read', etag: true },
    schema: {
      operationId: 'getKeySet',
      summary: 'Get the key set of the instance: the SSH keys that may log in',
      tags: ['SSH'],
      params: InstanceParams,
      response: { 200: KeySetSchema },
    },
    handler: async (request, reply) => {
      const { mode, data } = await readKeySet(db, principalOf(request), instanceId(request.params));
      setEtag(reply, { mode, data });
      return { mode, data: [...data] };
    },
  });
  app.route({
    method: 'PUT',
    url: '/v1/instances/:id/ssh-keys',
    // The role billing has the scope for its own keys.
    config: {
      access: 'ssh_keys:write',
      roles: ['owner', 'admin', 'member'],
      etag: true,
      errors: ['CONFLICT', 'PRECONDITION_FAILED'],
    },
    schema: {
      operationId: 'replaceKeySet',
      summary: 'Replace the key set of the instance',
      tags: ['SSH'],
      params: InstanceParams,
      body: ReplaceKeys,
      response: { 200: KeySetSchema },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const ids = 'ssh_key_ids' in request.body ? request.body.ssh_key_ids : null;
      const mutation = { action: 'instance.replace_ssh_keys' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const check = ({ mode, data }: KeySet) => requireMatch(request, { mode, data });
        const { mode, data } = await replaceKeys(tx, principal, id, ids, check);
        setEtag(reply, { mode, data });
        return {
          status: 200,
          body: { mode, data: [...data] },
          target: id,
          data: { mode, ssh_keys: data.map((key) => key.id) },
        };
      });
      return body;
    },
  });
}

function registerMemberKeys(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/orgs/:id/ssh-keys',
    config: { access: 'any', organisation: { scope: 'ssh_keys:read' } },
    onRequest: inPathOrganisation(db),
    schema: {
      operationId: 'listOrgSshKeys',
      summary: "List the SSH keys of an organisation's members, which a key set can hold",
      tags: ['SSH'],
      params: pathIds({ id: 'the organisation' }),
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(KeySetKey) },
    },
    handler: (request) =>
      pageOfList(cursors, principalOf(request), request, {
        route: 'org-ssh-keys',
        of: { organisation: request.params.id },
        list: (before, count) => listMemberKeys(db, pathOrganisation(request), before, count),
        show: (key) => key,
      }),
  });
}
