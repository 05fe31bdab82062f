/** Reads the API document, with its references resolved, for tests. */
import type { FastifyInstance } from 'fastify';
import type { RouteAccess } from '../../src/control-plane/http/access.ts';

export interface Operation {
  readonly operationId: string;
  readonly summary: string;
  readonly description: string;
  readonly tags: readonly string[];
  readonly security?: readonly unknown[];
  readonly parameters?: readonly { readonly name: string; readonly in: string; readonly schema: unknown }[];
  readonly requestBody?: {
    readonly required?: boolean;
    readonly content: Readonly<Record<string, Media>>;
  };
  readonly responses: Readonly<Record<string, Response>>;
  readonly 'x-access': RouteAccess;
}
interface Response {
  readonly description: string;
  readonly headers?: Readonly<Record<string, unknown>>;
  readonly content?: Readonly<Record<string, Media>>;
}
export interface Media {
  readonly schema: Schema;
  readonly example?: unknown;
  readonly examples?: Readonly<Record<string, { readonly value: unknown }>>;
}
export interface Schema {
  readonly properties?: Readonly<Record<string, unknown>>;
  readonly anyOf?: readonly Schema[];
}
export interface Document {
  readonly openapi: string;
  readonly info: { readonly title: string; readonly version: string };
  readonly security: readonly unknown[];
  readonly tags: readonly { readonly name: string; readonly description: string }[];
  readonly components: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
}

export interface Endpoint {
  /** `POST /v1/instances/{id}/vm` */
  readonly name: string;
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly operation: Operation;
}

/** The document as it is served. */
export function documentOf(app: FastifyInstance): Document {
  return JSON.parse(JSON.stringify(app.apiDocument()));
}

/** Every operation, with its references resolved. */
export function endpointsOf(document: Document): Endpoint[] {
  const { paths } = dereference(document, document) as Document;
  return Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({
      name: `${method.toUpperCase()} ${path}`,
      method: method.toUpperCase() as Endpoint['method'],
      path,
      operation,
    })),
  );
}

/** Does not end for recursive schemas; the document has none. */
function dereference(document: Document, value: unknown): unknown {
  if (Array.isArray(value)) return value.map((each) => dereference(document, each));
  if (typeof value !== 'object' || value === null) return value;
  const { $ref } = value as { $ref?: unknown };
  if (typeof $ref === 'string') {
    const [, , kind = '', name = ''] = $ref.split('/');
    const target = document.components[kind]?.[name];
    if (target === undefined) throw new Error(`${$ref} is not there`);
    return dereference(document, target);
  }
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, dereference(document, inner)]));
}
