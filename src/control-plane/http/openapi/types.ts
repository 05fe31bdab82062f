/** The parts of an OpenAPI 3.1 document that the API document has. */
import type { RouteAccess } from '../access-of.ts';

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
