/**
 * Collects the schemas of the API document. A schema with a `title`, in PascalCase, becomes a component of that name,
 * and is referred to wherever it occurs. If two different schemas have one name, building the document fails. Also has
 * the types of the document's parts.
 */
import { isDeepStrictEqual } from 'node:util';
import { assert } from '../../shared/assert.ts';
import type { RouteAccess } from './access.ts';

/** The integers that JSON carries without loss (RFC 8259, section 6). */
const MAX_INTEGER = Number.MAX_SAFE_INTEGER;
const INT32_MAX = 2 ** 31 - 1;
/** Above every value in an answer, because requests bound the stored values. */
export const MAX_ANSWER_TEXT = 65_536;
export const MAX_ANSWER_ITEMS = 10_000;

type Schemas = Record<string, SchemaObject>;

export class ComponentSchemas {
  readonly #found: Schemas = {};

  ofRequest(schema: SchemaObject): SchemaObject | Reference {
    return this.#refer(schema, false);
  }

  ofAnswer(schema: SchemaObject): SchemaObject | Reference {
    return this.#refer(schema, true);
  }

  /** By name. */
  all(): Schemas {
    return Object.fromEntries(Object.entries(this.#found).sort(([a], [b]) => (a < b ? -1 : 1)));
  }

  #refer(given: SchemaObject, is_answer: boolean): SchemaObject {
    // The document's examples are those of whole bodies (`exampleOf`).
    const { title, examples: _, ...rest } = given;
    const schema = bounded(this.#descend(plain(rest), is_answer), is_answer);
    if (title === undefined) return schema;
    assert(/^[A-Z][A-Za-z0-9]+$/.test(title), `a schema's title is its name: ${title}`);
    const before = this.#found[title];
    assert(before === undefined || isDeepStrictEqual(before, schema), `two schemas are named ${title}`);
    this.#found[title] = schema;
    return { $ref: `#/components/schemas/${title}` };
  }

  #descend(schema: SchemaObject, is_answer: boolean): SchemaObject {
    const refer = (inner: SchemaObject) => this.#refer(inner, is_answer);
    const referAll = (of: Schemas) =>
      Object.fromEntries(Object.entries(of).map(([name, inner]) => [name, refer(inner)]));
    const { properties, patternProperties, additionalProperties, items, anyOf } = schema;
    return {
      ...schema,
      ...(properties ? { properties: referAll(properties) } : {}),
      ...(patternProperties ? { patternProperties: referAll(patternProperties) } : {}),
      ...(typeof additionalProperties === 'object'
        ? { additionalProperties: refer(additionalProperties) }
        : {}),
      ...(items ? { items: refer(items) } : {}),
      ...(anyOf ? { anyOf: anyOf.map(refer) } : {}),
    };
  }
}

/** The forms that most readers of OpenAPI know: a list for a constant, `additionalProperties` for any key. */
function plain({ const: only, patternProperties, ...rest }: SchemaObject): SchemaObject {
  const any_key = patternProperties?.['^.*$'];
  return {
    ...rest,
    ...(only === undefined ? {} : { enum: [only] }),
    ...(any_key ? { additionalProperties: any_key } : patternProperties ? { patternProperties } : {}),
  };
}

/** Every integer states its format. In an answer every integer, text and list also states its bounds. */
function bounded(schema: SchemaObject, is_answer: boolean): SchemaObject {
  const { type } = schema;
  if (type === 'integer') {
    const limits = is_answer ? { minimum: 0, maximum: MAX_INTEGER, ...schema } : schema;
    const wide = (limits.maximum ?? MAX_INTEGER) > INT32_MAX;
    return { format: wide ? 'int64' : 'int32', ...limits };
  }
  if (!is_answer) return schema;
  if (type === 'string' && schema.enum === undefined) {
    return { maxLength: schema.format === 'date-time' ? 24 : MAX_ANSWER_TEXT, ...schema };
  }
  return type === 'array' ? { maxItems: MAX_ANSWER_ITEMS, ...schema } : schema;
}

/** The part of OpenAPI 3.1 that our document uses. */
export interface SchemaObject {
  $ref?: string;
  title?: string;
  description?: string;
  type?: string | string[];
  format?: string;
  pattern?: string;
  const?: unknown;
  enum?: unknown[];
  default?: unknown;
  examples?: unknown[];
  required?: string[];
  properties?: Record<string, SchemaObject>;
  patternProperties?: Record<string, SchemaObject>;
  additionalProperties?: boolean | SchemaObject;
  items?: SchemaObject;
  anyOf?: SchemaObject[];
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  maxItems?: number;
  /** The schema of the number that a text in a query holds. */
  contentSchema?: SchemaObject;
}
export interface MediaObject {
  schema: SchemaObject | Reference;
  example?: unknown;
  examples?: Record<string, { value: unknown }>;
}
export interface Reference {
  $ref: string;
}
export interface ParameterObject {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema: SchemaObject | Reference;
}
export interface HeaderObject {
  description: string;
  required?: boolean;
  schema: SchemaObject;
}
export interface ResponseObject {
  description: string;
  headers?: Record<string, HeaderObject | Reference>;
  content?: Record<string, MediaObject>;
}
export interface OperationObject {
  operationId: string;
  summary: string;
  description?: string;
  tags: readonly string[];
  parameters?: (ParameterObject | Reference)[];
  requestBody?: { required?: boolean; content: Record<string, MediaObject> };
  responses: Record<string, ResponseObject | Reference>;
  security: Record<string, string[]>[];
  'x-access': RouteAccess;
}
export interface DocumentObject {
  openapi: string;
  info: { title: string; version: string; description: string };
  components: {
    securitySchemes: Record<string, { description: string }>;
    schemas: Record<string, SchemaObject>;
    responses: Record<string, ResponseObject>;
    parameters: Record<string, ParameterObject>;
    headers: Record<string, HeaderObject>;
  };
  /** By path, then by method in lower case. */
  paths: Record<string, Record<string, OperationObject>>;
  servers: object[];
  security: Record<string, string[]>[];
  tags: { name: string; description: string }[];
}
export const JSON_TYPE = 'application/json';
