/**
 * Completes one operation from its route's configuration: who may call it, the headers it takes and gives, and every
 * error that its configuration implies beside those that the route declares for itself.
 */
import type { FastifyContextConfig } from 'fastify';
import { ERROR_CODES, type ErrorCode } from '../lib/errors.ts';
import { accessOf, describeAccess, type RouteAccess } from './access-of.ts';
import { unauthenticatedCode } from './errors.ts';
import { COMMON_HEADERS, headerRefs, type SharedResponses } from './openapi-responses.ts';
import {
  JSON_TYPE,
  type OperationObject,
  type ParameterObject,
  type ResponseObject,
} from './openapi-types.ts';

export type RouteFacts = FastifyContextConfig;

export interface Place {
  readonly method: string;
  readonly path: string;
  readonly facts: RouteFacts;
  /** Some operation of this path honours If-Match, so the resource has an ETag. */
  readonly versioned: boolean;
}

const COOKIE_SETTERS: ReadonlySet<string> = new Set([
  'register',
  'login',
  'loginByPasskey',
  'refresh',
  'logout',
  'grantSudo',
  'deleteMe',
]);
/** Those that answer with a resource of another path: with its ETag, unless the answer is replayed. */
const ETAG_GIVERS: ReadonlySet<string> = new Set([
  'createInstance',
  'forkInstance',
  'restoreInstance',
  'createApiKey',
  'rotateApiKey',
  'createWebhook',
  'rotateWebhookSecret',
  'createServiceAccount',
  'createOrg',
]);
const MAX_PARAM_LENGTH = 256;
const DONE: Readonly<Record<string, string>> = {
  200: 'Done.',
  201: 'Made.',
  202: 'Accepted.',
  204: 'Done; no body.',
};

export function completeOperation(operation: OperationObject, place: Place, shared: SharedResponses): void {
  const { method, facts } = place;
  // What such a request carries is looked at, but there is nothing that it could say.
  if (method === 'delete' || method === 'get') delete operation.requestBody;
  const access = accessOf(facts);
  operation.description = [operation.description, describeAccess(access)].filter(Boolean).join('\n\n');
  operation.security = securityOf(access);
  Object.assign(operation, { 'x-access': access });
  completeParameters(operation, place);
  completeErrors(operation, place, shared);
  completeSuccesses(operation, place);
}

function securityOf({ kind, sudo }: RouteAccess): Record<string, string[]>[] {
  if (kind === 'public') return [];
  if (kind === 'session') return [sudo ? { session: [], sudo: [] } : { session: [] }];
  return [{ session: [] }, { api_key: [] }];
}

function completeParameters(operation: OperationObject, { facts, path }: Place): void {
  const own = (operation.parameters ?? []) as ParameterObject[];
  for (const parameter of own) {
    if (parameter.schema.contentSchema) parameter.schema = parameter.schema.contentSchema;
    if (parameter.in !== 'path') continue;
    const what =
      path
        .slice(0, path.indexOf(`{${parameter.name}}`))
        .split('/')
        .at(-2) ?? '';
    parameter.schema = { type: 'string', minLength: 1, maxLength: MAX_PARAM_LENGTH };
    parameter.description ??= `An id of ${what}; one that is malformed is 404.`;
  }
  const headers = [
    ...(facts.idempotent === true ? ['IdempotencyKey'] : []),
    ...('412' in operation.responses ? ['IfMatch'] : []),
    ...(facts.access === 'public' || facts.organisation !== undefined ? [] : ['BerthOrg']),
  ];
  const all = [...own, ...headers.map((name) => ({ $ref: `#/components/parameters/${name}` }))];
  if (all.length > 0) operation.parameters = all;
}

/** The codes that the route's configuration implies. */
function impliedErrors({ facts, path, method }: Place): ErrorCode[] {
  const is_public = facts.access === 'public';
  return [
    'INVALID_REQUEST',
    ...(is_public ? [] : (['UNAUTHENTICATED', 'FORBIDDEN'] as const)),
    ...(facts.sudo === true ? (['SUDO_REQUIRED'] as const) : []),
    ...(path.includes('{') ? (['NOT_FOUND'] as const) : []),
    ...(facts.idempotent === true ? (['IDEMPOTENCY_IN_PROGRESS', 'IDEMPOTENCY_KEY_REUSED'] as const) : []),
    // A DELETE takes no body, but one that comes along is looked at.
    ...(method === 'get' ? [] : (['PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE'] as const)),
    'MISDIRECTED_REQUEST',
    'RATE_LIMITED',
    'INTERNAL',
    'UNAVAILABLE',
  ];
}

function completeErrors(operation: OperationObject, place: Place, shared: SharedResponses): void {
  const byStatus = new Map<string, Set<ErrorCode>>();
  const add = (given: ErrorCode) => {
    const code = given === 'UNAUTHENTICATED' ? unauthenticatedCode(place.path) : given;
    const status = String(ERROR_CODES[code].status);
    byStatus.set(status, (byStatus.get(status) ?? new Set()).add(code));
  };
  for (const [status, response] of Object.entries(operation.responses)) {
    if (status >= '400') declaredCodes(response as ResponseObject).forEach(add);
  }
  impliedErrors(place).forEach(add);
  for (const [status, codes] of byStatus) operation.responses[status] = shared.refer([...codes]);
}

/** As `errors()` of `schemas.ts` put them. */
function declaredCodes(response: ResponseObject): ErrorCode[] {
  const schema = response.content?.[JSON_TYPE]?.schema;
  return (schema?.properties?.['error']?.properties?.['code']?.enum ?? []) as ErrorCode[];
}

function completeSuccesses(operation: OperationObject, { method, facts, versioned }: Place): void {
  const title = operation.operationId.charAt(0).toUpperCase() + operation.operationId.slice(1);
  const request = operation.requestBody?.content[JSON_TYPE]?.schema;
  if (request && operation.requestBody) {
    request.title ??= `${title}Request`;
    // Without required fields an empty body will do.
    operation.requestBody.required = request.anyOf !== undefined || (request.required ?? []).length > 0;
  }
  const changes = '412' in operation.responses && (method === 'patch' || method === 'put');
  for (const [status, response] of Object.entries(operation.responses)) {
    if (status >= '400' || '$ref' in response) continue;
    const schema = response.content?.[JSON_TYPE]?.schema;
    if (schema) schema.title ??= `${title}Response`;
    if (response.description === 'Default Response') response.description = DONE[status] ?? 'Done.';
    response.headers = headerRefs([
      ...COMMON_HEADERS,
      ...((versioned && (method === 'get' || changes)) || ETAG_GIVERS.has(operation.operationId)
        ? ['ETag']
        : []),
      ...(facts.idempotent === true ? ['Idempotency-Replayed'] : []),
      ...(COOKIE_SETTERS.has(operation.operationId) ? ['Set-Cookie'] : []),
    ]);
  }
}
