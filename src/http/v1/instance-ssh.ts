import { Type } from 'typebox';
import { type KeySet, readKeySet, replaceKeys } from '../../instances/replace-ssh-keys.ts';
import { findInstance } from '../../instances/store.ts';
import { AppError } from '../../lib/errors.ts';
import { listMemberKeys } from '../../ssh-keys/store.ts';
import { connectionDetails } from '../../vms/connection-details.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { requireMatch, setEtag } from '../etag.ts';
import { mutate } from '../mutate.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import { inPathOrganisation, pathOrganisation } from '../path-organisation.ts';
import {
  COMMON,
  closed,
  EmptyBody,
  errors,
  IdParams,
  InstanceParams,
  named,
  pageOf,
  pageQuery,
} from '../schemas.ts';
import { instanceId } from './instances.ts';

const HostKeySchema = named('HostKey', {
  type: Type.String(),
  fingerprint: Type.String(),
  public_key: Type.String(),
});
const ConnectionDetails = named('ConnectionDetails', {
  host: Type.String(),
  port: Type.Integer(),
  user: Type.String(),
  host_keys: Type.Array(HostKeySchema),
  known_hosts: Type.Array(Type.String()),
  command: Type.String(),
  allowed_keys: Type.Integer({ description: 'How many keys the instance lets in' }),
});
const KeySetMode = Type.Unsafe<'account' | 'explicit'>({ type: 'string', enum: ['account', 'explicit'] });
const KeySetKey = named('KeySetKey', {
  id: Type.String(),
  name: Type.String(),
  type: Type.String(),
  fingerprint: Type.String(),
  owner_id: Type.String(),
});
const KeySetSchema = named('KeySet', { mode: KeySetMode, data: Type.Array(KeySetKey) });
const ReplaceKeys = Type.Union(
  [
    closed({ ssh_key_ids: Type.Array(Type.String({ maxLength: 64 }), { maxItems: 200 }) }),
    closed({ mode: Type.Literal('account') }),
  ],
  { description: 'Either `ssh_key_ids`, or `mode` with the value `account`' },
);

export function registerInstanceSsh(app: App, context: AppContext, cursors: CursorSealer): void {
  registerDetails(app, context);
  registerKeySet(app, context);
  registerMemberKeys(app, context, cursors);
}

function registerDetails(app: App, { db, ssh }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/ssh',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'getSsh',
      summary: 'How to connect to the running VM',
      tags: ['SSH'],
      params: InstanceParams,
      querystring: EmptyBody,
      response: { 200: ConnectionDetails, ...errors(...COMMON, 'NOT_FOUND', 'VM_NOT_RUNNING') },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const row = await findInstance(db, principal.org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const keys = await readKeySet(db, principal, row.id);
      return connectionDetails(row, ssh.host, keys.data.length);
    },
  });
}

function registerKeySet(app: App, context: AppContext): void {
  const { db } = context;
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/ssh-keys',
    config: { access: 'ssh_keys:read' },
    schema: {
      operationId: 'getKeySet',
      summary: 'The keys that the instance lets in',
      tags: ['SSH'],
      params: InstanceParams,
      querystring: EmptyBody,
      response: { 200: KeySetSchema, ...errors(...COMMON, 'NOT_FOUND') },
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
    // Billing has the scope for keys of its own.
    config: { access: 'ssh_keys:write', roles: ['owner', 'admin', 'member'] },
    schema: {
      operationId: 'replaceKeySet',
      summary: 'Replace the keys that the instance lets in',
      tags: ['SSH'],
      params: InstanceParams,
      body: ReplaceKeys,
      response: { 200: KeySetSchema, ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT', 'PRECONDITION_FAILED') },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const ids = 'ssh_key_ids' in request.body ? request.body.ssh_key_ids : null;
      const { body } = await mutate(
        context,
        request,
        reply,
        { action: 'instance.replace_ssh_keys' },
        async (tx, principal) => {
          const check = ({ mode, data }: KeySet) => requireMatch(request, { mode, data });
          const { mode, data } = await replaceKeys(tx, principal, id, ids, check);
          setEtag(reply, { mode, data });
          return {
            status: 200,
            body: { mode, data: [...data] },
            target: id,
            data: { mode, ssh_keys: data.map((key) => key.id) },
          };
        },
      );
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
      summary: "The SSH keys of an organisation's members: what an instance's key set can be made of",
      tags: ['SSH'],
      params: IdParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(KeySetKey), ...errors(...COMMON, 'NOT_FOUND') },
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
