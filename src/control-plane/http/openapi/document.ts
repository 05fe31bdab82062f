/**
 * The API document: its head, and an operation for each route, made from what the route declares (`operation.ts`).
 * Components collect the schemas and error responses that operations refer to.
 */
import type { FastifyInstance } from 'fastify';
import { assert } from '../../../shared/assert.ts';
import { ERROR_SCHEMA, PROBLEM_SCHEMA } from '../schemas.ts';
import { operationOf, type RouteDeclaration } from './operation.ts';
import { ComponentSchemas } from './schemas.ts';
import { ErrorResponses, HEADERS, PARAMETERS } from './shared.ts';
import type { DocumentObject, OperationObject, SchemaObject } from './types.ts';

declare module 'fastify' {
  interface FastifyInstance {
    /** The API document; made when it is first read, then kept. */
    apiDocument(): DocumentObject;
  }
}

export const API_VERSION = '0.1.0';

const TAGS: Readonly<Record<string, string>> = {
  Accounts: "Registration, sessions, passwords, sudo, and the caller's account.",
  MFA: 'Second factors: TOTP, passkeys and recovery codes.',
  'API keys': 'Keys for programs. The plain key is shown once, at creation and at rotation.',
  'Service accounts': 'Accounts of programs. They hold API keys.',
  Organisations: 'Organisations, their members, invitations, billing addresses and quotas.',
  Audit: 'Who did what, when and from where. Each entry includes the hash of the one before.',
  Instances: 'Instances: name, size, labels, disk.',
  Generations: 'Saved states of a disk, to restore or to fork.',
  VM: 'The virtual machine that runs an instance: start, stop, suspend, flush, commands, console.',
  Notifications: 'Notifications of the caller: a list, a count, a live stream, and mail preferences.',
  Events: 'Events of the organisation: a list and a live stream.',
  SSH: 'SSH keys of accounts and instances, and how to connect.',
  Execs: 'Commands in guests that outlive their callers: streams, terminals, signals, kept output.',
  Files: 'Files of the guest: read, write, list, move, delete.',
  'HTTP ports': 'Ports of the guest under a URL: access, tickets for browsers, hostnames of your own.',
  Secrets: 'Values that a VM uses in HTTPS requests and cannot read.',
  Webhooks: 'Signed requests to your servers for each event.',
  Operator: 'The whole installation, for the owners and admins of the organisation that operates it.',
};

const INFO = {
  title: 'Berth',
  version: API_VERSION,
  description: [
    'An instance is a Linux machine that can be stopped without losing a file: its disk, name and SSH address stay until it is deleted. It runs in a virtual machine (VM), which exists only while the instance runs.',
    'Send an API key or a session token as `Authorization: Bearer …`. An API key acts in the organisation it was created in. A session acts in the organisation that the header `Berth-Org` names; without the header, in the first one that its user joined.',
    'If several errors apply, the answer is the first of these: 401, 403 FORBIDDEN, 403 SUDO_REQUIRED, 400, 404, 409 or 412. An unknown field or query parameter gets 400. Lists are newest first. For the next page, pass `next_cursor` as `cursor`.',
  ].join('\n\n'),
  contact: { name: 'The operator of this server' },
  license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
};
const SERVERS = [
  {
    url: '/',
    description: 'The server that serves this document (local or production).',
    'x-internal': false,
  },
];
const SECURITY_SCHEMES = {
  session: { type: 'http', scheme: 'bearer', description: 'A session token, `berth_sess_…`.' },
  api_key: { type: 'http', scheme: 'bearer', description: 'An API key, `berth_live_…`.' },
  sudo: {
    type: 'apiKey',
    in: 'cookie',
    name: '__Secure-berth_sudo',
    description: 'The sudo grant of POST /v1/auth/sudo, in addition to the session; valid for five minutes.',
  },
};

/** Decorates `app` with the document. */
export function registerDocument(app: FastifyInstance): void {
  const routes: RouteDeclaration[] = [];
  app.addHook('onRoute', (route) => {
    const { schema, config = {}, url } = route;
    if (schema?.operationId === undefined) {
      assert(schema?.hide === true || !url.startsWith('/v1/'), `${url} declares no operationId`);
      return;
    }
    routes.push({
      method: String(route.method).toLowerCase(),
      path: url.replace(/:([a-z_]+)/g, '{$1}'),
      config,
      schema: schema as RouteDeclaration['schema'],
    });
  });
  let made: DocumentObject | undefined;
  app.decorate('apiDocument', () => {
    made ??= documentOf(routes);
    return made;
  });
}

function documentOf(routes: readonly RouteDeclaration[]): DocumentObject {
  const components = { schemas: new ComponentSchemas(), errors: new ErrorResponses() };
  const paths: Record<string, Record<string, OperationObject>> = {};
  for (const route of routes) {
    paths[route.path] = { ...paths[route.path], [route.method]: operationOf(route, components) };
  }
  return {
    openapi: '3.1.0',
    info: INFO,
    components: {
      securitySchemes: SECURITY_SCHEMES,
      schemas: {
        Error: ERROR_SCHEMA as SchemaObject,
        ProblemDetails: PROBLEM_SCHEMA as SchemaObject,
        ...components.schemas.all(),
      },
      responses: components.errors.all(),
      parameters: PARAMETERS,
      headers: HEADERS,
    },
    paths,
    servers: SERVERS,
    security: [{ session: [] }, { api_key: [] }],
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
  };
}
