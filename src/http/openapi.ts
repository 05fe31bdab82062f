/**
 * The API document's head, and how it is made: @fastify/swagger lists the routes with their schemas, then every
 * operation is completed from its route's configuration (`openapi-operations.ts`), and schemas become named components
 * (`openapi-components.ts`). Validators and serialisers are not touched: only the document is.
 */
import type { FastifyDynamicSwaggerOptions } from '@fastify/swagger';
import { hoistSchemas } from './openapi-components.ts';
import { addExamples } from './openapi-examples.ts';
import { completeOperation, type RouteFacts } from './openapi-operations.ts';
import { HEADERS, PARAMETERS, SharedResponses } from './openapi-responses.ts';
import type { OpenApiDocument } from './openapi-types.ts';
import { ERROR_SCHEMA } from './schemas.ts';

export const API_VERSION = '0.1.0';

const TAGS: Readonly<Record<string, string>> = {
  Accounts: 'Registering, sessions, passwords, sudo, and the caller’s own account.',
  MFA: 'Second factors: TOTP, passkeys and recovery codes.',
  'API keys': 'Keys for programs. The plain key is shown once, at creation and at rotation.',
  'Service accounts': 'Holders of API keys that are no persons.',
  Organisations: 'Organisations, their members, invitations, bills and quotas.',
  Audit: 'Who did what, when and from where; hash-chained.',
  Instances: 'Durable instances: name, size, labels, disk.',
  Generations: 'What a flush made durable: states of a disk to go back to, or to fork.',
  VM: 'The virtual machine that comes and goes behind an instance.',
  Notifications: 'What the caller is told of: a list, a count, a live stream, and what goes by mail.',
  Events: 'What happened in the organisation: a list and a live stream.',
  SSH: 'SSH keys of accounts and instances, and how to connect.',
  Webhooks: 'Signed requests to servers of yours when something happens.',
};

/** The document's head; paths and schemas come from the routes. */
const HEAD: NonNullable<FastifyDynamicSwaggerOptions['openapi']> = {
  openapi: '3.1.0',
  info: {
    title: 'Berth',
    version: API_VERSION,
    description: [
      'Durable instances and the virtual machines that come and go behind them.',
      'Both kinds of credential travel as `Authorization: Bearer …`. An API key acts in the organisation it was made in; a session in the one that the header `Berth-Org` names, else in the first it belonged to.',
      'Checks come in this order: 401, 403 FORBIDDEN, 403 SUDO_REQUIRED, 400, 404, 409 or 412. Unknown fields and query parameters are 400. Lists are newest first; pass `next_cursor` on as `cursor`.',
    ].join('\n\n'),
    contact: { name: 'Whoever runs this server' },
    license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
  },
  servers: [
    {
      url: '/',
      description: 'The server that serves this document (local or production).',
      'x-internal': false,
    },
  ] as never,
  tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
  components: {
    securitySchemes: {
      session: { type: 'http', scheme: 'bearer', description: 'A session token, `berth_sess_…`.' },
      api_key: { type: 'http', scheme: 'bearer', description: 'An API key, `berth_live_…`.' },
      sudo: {
        type: 'apiKey',
        in: 'cookie',
        name: '__Secure-berth_sudo',
        description: 'The sudo grant of POST /v1/auth/sudo, beside the session; good for five minutes.',
      },
    },
  },
  security: [{ session: [] }, { api_key: [] }],
};

export function openApiOptions(): FastifyDynamicSwaggerOptions {
  const routes = new Map<string, RouteFacts>();
  return {
    openapi: HEAD,
    transform: ({ schema, url, route }) => {
      const { operationId } = (schema ?? {}) as { operationId?: string };
      if (operationId !== undefined) routes.set(operationId, { ...route.config });
      return { schema, url };
    },
    transformObject: (made) => {
      if (!('openapiObject' in made)) return made.swaggerObject;
      return complete(made.openapiObject as OpenApiDocument, routes) as typeof made.openapiObject;
    },
  };
}

function complete(document: OpenApiDocument, routes: ReadonlyMap<string, RouteFacts>): OpenApiDocument {
  const shared = new SharedResponses();
  for (const [path, operations] of Object.entries(document.paths)) {
    const versioned = Object.values(operations).some((operation) => '412' in operation.responses);
    for (const [method, operation] of Object.entries(operations)) {
      const facts = routes.get(operation.operationId) ?? {};
      completeOperation(operation, { method, path, facts, versioned }, shared);
    }
  }
  const schemas = hoistSchemas(document);
  document.components = {
    ...document.components,
    schemas: { Error: ERROR_SCHEMA, ...schemas },
    responses: shared.all(),
    parameters: PARAMETERS,
    headers: HEADERS,
  };
  addExamples(document);
  return document;
}
