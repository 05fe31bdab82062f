/**
 * One operation of the API document, from its route's declaration alone: the schema, and the configuration with its
 * access, its errors and its headers. What every route of a configuration answers is added here: `impliedErrors`.
 */
import type { FastifyContextConfig } from 'fastify';
import { ERROR_CODES, type ErrorCode } from '../../../shared/errors.ts';
import { accessOf, describeAccess, type RouteAccess } from '../access-of.ts';
import { unauthenticatedCode } from '../errors.ts';
import { exampleOf } from './example.ts';
import type { ComponentSchemas } from './schemas.ts';
import { COMMON_HEADERS, type ErrorResponses, headerRefs } from './shared.ts';
import {
  JSON_TYPE,
  type MediaObject,
  type OperationObject,
  type ParameterObject,
  type Reference,
  type ResponseObject,
  type SchemaObject,
} from './types.ts';

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

export function operationOf(route: RouteDeclaration, components: Components): OperationObject {
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
