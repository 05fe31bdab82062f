/**
 * Builds the API document (OpenAPI 3.1) from the declarations of the routes alone: each operation with its access
 * rules, example, headers and errors.
 */
import type { FastifyContextConfig, FastifyInstance } from 'fastify';
import { assert } from '../../shared/assert.ts';
import { ERROR_CODES, type ErrorCode } from '../../shared/errors.ts';
import { accessOf, describeAccess, type RouteAccess } from './access.ts';
import { PROBLEM_TYPE, unauthenticatedCode } from './errors.ts';
import {
  ComponentSchemas,
  type DocumentObject,
  type HeaderObject,
  JSON_TYPE,
  type MediaObject,
  type OperationObject,
  type ParameterObject,
  type Reference,
  type ResponseObject,
  type SchemaObject,
} from './openapi-schemas.ts';
import { ERROR_SCHEMA, PROBLEM_SCHEMA } from './schemas.ts';

// The example of a body, composed from the `examples` that its fields declare. A field with an empty list is left out:
// it is an alternative to another. A test holds every example against its schema.

const EXAMPLE_TIME = '2026-01-15T09:30:00.000Z';

function exampleOf(schema: SchemaObject): unknown {
  const { examples, properties, anyOf } = schema;
  if (examples) return examples[0];
  if (schema.const !== undefined) return schema.const;
  if (properties) {
    const shown = Object.entries(properties).filter(([, field]) => field.examples?.length !== 0);
    return Object.fromEntries(shown.map(([name, field]) => [name, exampleOf(field)]));
  }
  if (anyOf) return exampleOf(anyOf[0] ?? {});
  return byType(schema);
}

function byType(schema: SchemaObject): unknown {
  if (schema.enum) return schema.enum[0];
  switch (schema.type) {
    case 'string':
      assert(schema.format === 'date-time', `a text declares no example: ${JSON.stringify(schema)}`);
      return EXAMPLE_TIME;
    case 'integer':
    case 'number':
      return schema.minimum ?? 1;
    case 'boolean':
      return true;
    case 'array':
      return schema.items ? [exampleOf(schema.items)] : [];
    case 'object':
    case undefined:
      return {};
    case 'null':
      return null;
    default:
      assert(false, `no example for the type ${String(schema.type)}`);
  }
}

// Components of the API document that operations refer to: headers, parameters, error responses.

export const HEADERS: Record<string, HeaderObject> = {
  'X-Request-Id': {
    description: 'The id of this request in the logs and the audit log.',
    required: true,
    schema: { type: 'string', maxLength: 28, pattern: '^req_[0-9a-f]{24}$' },
  },
  'RateLimit-Policy': {
    description: 'The limit that applies: its name, its quota `q`, its window `w` in seconds.',
    schema: { type: 'string', maxLength: 100 },
  },
  RateLimit: {
    description: 'The rest of the limit: `r` requests, until it resets in `t` seconds.',
    schema: { type: 'string', maxLength: 100 },
  },
  'Retry-After': {
    description: 'The seconds to wait before a retry.',
    schema: { type: 'integer', format: 'int64', minimum: 1, maximum: 86_400 },
  },
  'WWW-Authenticate': { description: 'How to authenticate.', schema: { type: 'string', const: 'Bearer' } },
  ETag: {
    description: 'The state of the resource, for `If-Match`.',
    schema: { type: 'string', maxLength: 24, pattern: '^"[A-Za-z0-9_-]{22}"$' },
  },
  'Idempotency-Replayed': {
    description: 'The answer is that of an earlier request with the same key.',
    schema: { type: 'string', const: 'true' },
  },
  'Set-Cookie': {
    description:
      'A cookie that is HttpOnly, Secure, SameSite=Strict; that of a login at the OpenID provider is Lax.',
    schema: { type: 'string', maxLength: 4096 },
  },
};

const PARAMETERS: Record<string, ParameterObject> = {
  IdempotencyKey: {
    name: 'Idempotency-Key',
    in: 'header',
    required: false,
    description:
      '1 to 255 printable characters, bare or quoted; absent, empty and null mean none. For 24 hours a repeated request with the same key gets the same answer and changes nothing.',
    schema: { type: ['string', 'null'], maxLength: 257, pattern: '^[\\x20-\\x7e]*$' },
  },
  IfMatch: {
    name: 'If-Match',
    in: 'header',
    required: false,
    description: 'One or several ETags, or `*`: 412 if the resource is in another state.',
    schema: { type: 'string', maxLength: 2048 },
  },
  BerthOrg: {
    name: 'Berth-Org',
    in: 'header',
    required: false,
    description:
      'The organisation that a session acts in. An API key acts in its own; if the header names another, it gets 403.',
    schema: { type: 'string', maxLength: 30, pattern: '^org_[0-9a-hjkmnp-tv-z]{26}$' },
  },
};

function headerRefs(names: readonly string[]): Record<string, Reference> {
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));
}

/** On every response that came from a route. */
const COMMON_HEADERS = ['X-Request-Id', 'RateLimit-Policy', 'RateLimit'];
const RETRY_LATER: ReadonlySet<ErrorCode> = new Set([
  'IDEMPOTENCY_IN_PROGRESS',
  'ACCOUNT_LOCKED',
  'RATE_LIMITED',
  'UNAVAILABLE',
]);

/** One component for each set of codes that some operation answers with one status. */
class ErrorResponses {
  readonly #made = new Map<string, ResponseObject>();

  /** `codes` have one status. */
  refer(codes: readonly ErrorCode[]): Reference {
    const known = Object.keys(ERROR_CODES) as ErrorCode[];
    const sorted = known.filter((code) => codes.includes(code));
    const name = sorted.map(pascal).join('Or');
    if (!this.#made.has(name)) this.#made.set(name, errorResponse(sorted));
    return { $ref: `#/components/responses/${name}` };
  }

  all(): Record<string, ResponseObject> {
    return Object.fromEntries([...this.#made].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}

function errorResponse(codes: readonly ErrorCode[]): ResponseObject {
  const is_401 = codes.some((code) => ERROR_CODES[code].status === 401);
  const names = [
    ...COMMON_HEADERS,
    ...(is_401 ? ['WWW-Authenticate'] : []),
    ...(codes.some((code) => RETRY_LATER.has(code)) ? ['Retry-After'] : []),
  ];
  const example = (code: ErrorCode) => ({
    error: { code, message: ERROR_CODES[code].message, request_id: 'req_5f2b8c1e9d3a4b7c6e0f1a2d' },
  });
  return {
    description: codes.map((code) => `\`${code}\`: ${ERROR_CODES[code].message}`).join('\n\n'),
    headers: headerRefs(names),
    content: {
      [JSON_TYPE]: {
        schema: { $ref: '#/components/schemas/Error' },
        examples: Object.fromEntries(codes.map((code) => [code, { value: example(code) }])),
      },
      // To callers whose Accept prefers it.
      [PROBLEM_TYPE]: { schema: { $ref: '#/components/schemas/ProblemDetails' } },
    },
  };
}

function pascal(code: string): string {
  // The two spellings of one code need two names.
  if (code === 'Unauthenticated') return 'UnauthenticatedWebhooks';
  return code
    .toLowerCase()
    .split('_')
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join('');
}

// One operation of the API document, from its route's declaration alone: the schema, and the configuration with its
// access, its errors and its headers. What every route of a configuration answers is added here: `impliedErrors`.

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The errors that the handler answers with, beside those that follow from the configuration. */
    errors?: readonly ErrorCode[];
    /** Its success carries the ETag of the resource. */
    etag?: boolean;
    /** Its success sets or clears a cookie. */
    sets_cookie?: boolean;
  }
  interface FastifySchema {
    operationId?: string;
    summary?: string;
    description?: string;
    tags?: readonly string[];
    /** Not in the document. */
    hide?: boolean;
  }
}

/** What a route declares of a success: the body's schema, or a response whose body is not JSON. */
type Success = SchemaObject | { readonly description: string; readonly content: Record<string, MediaObject> };

export interface RouteDeclaration {
  readonly method: string;
  /** With `{id}` for a parameter. */
  readonly path: string;
  readonly config: FastifyContextConfig;
  readonly schema: {
    readonly operationId: string;
    readonly summary: string;
    readonly description?: string;
    readonly tags: readonly string[];
    readonly querystring?: SchemaObject;
    readonly params?: SchemaObject;
    readonly headers?: SchemaObject;
    readonly body?: SchemaObject;
    readonly response: Readonly<Record<string, Success>>;
  };
}

export interface Components {
  readonly schemas: ComponentSchemas;
  readonly errors: ErrorResponses;
}

const MAX_PARAM_LENGTH = 256;
const BYTES_TYPE = 'application/octet-stream';
const DESCRIPTIONS: Readonly<Record<string, string>> = { 200: 'Done.', 201: 'Created.', 202: 'Accepted.' };

function operationOf(route: RouteDeclaration, components: Components): OperationObject {
  const { operationId, summary, tags, description } = route.schema;
  const access = accessOf(route.config);
  const request_body = bodyOf(route, components);
  const parameters = parametersOf(route, components);
  return {
    operationId,
    summary,
    tags,
    ...(request_body ? { requestBody: request_body } : {}),
    ...(parameters.length > 0 ? { parameters } : {}),
    responses: { ...successesOf(route, components), ...errorsOf(route, components) },
    description: [description, describeAccess(access)].filter(Boolean).join('\n\n'),
    security: securityOf(access),
    'x-access': access,
  };
}

function securityOf({ kind, sudo }: RouteAccess): Record<string, string[]>[] {
  if (kind === 'public') return [];
  if (kind === 'session') return [sudo ? { session: [], sudo: [] } : { session: [] }];
  return [{ session: [] }, { api_key: [] }];
}

function bodyOf(route: RouteDeclaration, { schemas }: Components): OperationObject['requestBody'] {
  const { method, schema, config } = route;
  if (config.raw_body === true || config.streamed_body === true) {
    const maxLength = config.raw_body === true ? 2 ** 20 : Number.MAX_SAFE_INTEGER;
    const bytes = { type: 'string', maxLength, contentMediaType: BYTES_TYPE } as const;
    return { required: false, content: { [BYTES_TYPE]: { schema: bytes } } };
  }
  // A DELETE without a body and one with an empty object are the same.
  if (!schema.body || method === 'get' || method === 'delete') return undefined;
  const body = { title: nameOf(route, 'Request'), ...schema.body };
  return {
    required: body.anyOf !== undefined || (body.required ?? []).length > 0,
    content: { [JSON_TYPE]: { schema: schemas.ofRequest(body), example: exampleOf(body) } },
  };
}

/** The name of a schema that has none. */
function nameOf({ schema: { operationId } }: RouteDeclaration, kind: 'Request' | 'Response'): string {
  return `${operationId.charAt(0).toUpperCase()}${operationId.slice(1)}${kind}`;
}

function parametersOf(
  { config, schema }: RouteDeclaration,
  { schemas }: Components,
): (ParameterObject | Reference)[] {
  const fields = (place: string, of: SchemaObject | undefined) =>
    Object.entries(of?.properties ?? {}).map(([name, { description, ...field }]) => ({
      // What a path names may be anything: an unknown id is 404.
      schema:
        place === 'path'
          ? { type: 'string', minLength: 1, maxLength: MAX_PARAM_LENGTH }
          : schemas.ofRequest(field.contentSchema ?? field),
      in: place,
      name,
      required: place === 'path' || (of?.required?.includes(name) ?? false),
      ...(description === undefined ? {} : { description }),
    }));
  const shared = [
    ...(config.idempotent === true ? ['IdempotencyKey'] : []),
    ...(config.errors?.includes('PRECONDITION_FAILED') ? ['IfMatch'] : []),
    ...(config.access === 'public' || config.organisation !== undefined ? [] : ['BerthOrg']),
  ];
  return [
    ...fields('query', schema.querystring),
    ...fields('path', schema.params),
    ...fields('header', schema.headers),
    ...shared.map((name) => ({ $ref: `#/components/parameters/${name}` })),
  ];
}

function successesOf(route: RouteDeclaration, { schemas }: Components): Record<string, ResponseObject> {
  const { config, schema } = route;
  const headers = headerRefs([
    ...COMMON_HEADERS,
    ...(config.etag === true ? ['ETag'] : []),
    ...(config.idempotent === true ? ['Idempotency-Replayed'] : []),
    ...(config.sets_cookie === true ? ['Set-Cookie'] : []),
  ]);
  const response = (status: string, success: Success): ResponseObject => {
    if ('content' in success) return { ...success, headers };
    const { description = DESCRIPTIONS[status] ?? 'Done.' } = success;
    if (success.type === 'null') return { description, headers };
    const body = { title: nameOf(route, 'Response'), ...success };
    const media = { schema: schemas.ofAnswer(body), example: exampleOf(body) };
    return { description, content: { [JSON_TYPE]: media }, headers };
  };
  return Object.fromEntries(
    Object.entries(schema.response).map(([status, success]) => [status, response(status, success)]),
  );
}

function errorsOf(route: RouteDeclaration, { errors }: Components): Record<string, Reference> {
  const spelt = (code: ErrorCode) => (code === 'UNAUTHENTICATED' ? unauthenticatedCode(route.path) : code);
  const codes = new Set([...impliedErrors(route), ...(route.config.errors ?? [])].map(spelt));
  const by_status = Map.groupBy(codes, (code) => String(ERROR_CODES[code].status));
  return Object.fromEntries([...by_status].map(([status, of]) => [status, errors.refer(of)]));
}

/** The errors that follow from a route's configuration, its path and its method. */
function impliedErrors({ config, path, method }: RouteDeclaration): ErrorCode[] {
  return [
    'INVALID_REQUEST',
    ...(config.access === 'public' ? [] : (['UNAUTHENTICATED', 'FORBIDDEN'] as const)),
    ...(config.own_site === true ? (['FORBIDDEN'] as const) : []),
    ...(config.sudo === true ? (['SUDO_REQUIRED'] as const) : []),
    ...(path.includes('{') ? (['NOT_FOUND'] as const) : []),
    ...(config.idempotent === true ? (['IDEMPOTENCY_IN_PROGRESS', 'IDEMPOTENCY_KEY_REUSED'] as const) : []),
    // A DELETE takes no body; one that is sent is checked all the same.
    ...(method === 'get' ? [] : (['PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE'] as const)),
    'MISDIRECTED_REQUEST',
    'RATE_LIMITED',
    'INTERNAL',
    'UNAVAILABLE',
  ];
}

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
  Audit:
    'Who did what, when and from where. Entries are chained: a change or a removal of one shows (`berth audit verify`).',
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
