/**
 * Schemas with a `title` in PascalCase become components of that name, wherever they stand, and are referred to.
 * Two different schemas of one name are a mistake and stop the document.
 */
import { isDeepStrictEqual } from 'node:util';
import { assert } from '../lib/assert.ts';
import { JSON_TYPE, type MediaObject, type OpenApiDocument, type SchemaObject } from './openapi-types.ts';

/** What JSON carries without loss (RFC 8259, section 6). */
const MAX_INTEGER = Number.MAX_SAFE_INTEGER;
const INT32_MAX = 2 ** 31 - 1;
/** An answer's strings and lists are bounded by what requests may put in; these are above all of it. */
const MAX_ANSWER_TEXT = 65_536;
const MAX_ANSWER_ITEMS = 10_000;
const MAX_ID = 64;

type Components = Record<string, SchemaObject>;

/** Replaces named schemas of every request and response by references; answers the components, by name. */
export function hoistSchemas(document: OpenApiDocument): Components {
  const found: Components = {};
  for (const operations of Object.values(document.paths)) {
    for (const operation of Object.values(operations)) {
      for (const parameter of operation.parameters ?? []) {
        if ('schema' in parameter) parameter.schema = hoist(parameter.schema, found, false);
      }
      hoistMedia(operation.requestBody?.content[JSON_TYPE], found, false);
      for (const response of Object.values(operation.responses)) {
        if ('content' in response) hoistMedia(response.content?.[JSON_TYPE], found, true);
      }
    }
  }
  return Object.fromEntries(Object.entries(found).sort(([a], [b]) => (a < b ? -1 : 1)));
}

function hoistMedia(media: MediaObject | undefined, found: Components, is_answer: boolean): void {
  if (media) media.schema = hoist(media.schema, found, is_answer);
}

function hoist(given: SchemaObject, found: Components, is_answer: boolean): SchemaObject {
  const { title, ...rest } = given;
  const schema = bounded(descend(rest, found, is_answer), is_answer);
  if (title === undefined) return schema;
  assert(/^[A-Z][A-Za-z0-9]+$/.test(title), `a schema's title is its name: ${title}`);
  const before = found[title];
  assert(before === undefined || isDeepStrictEqual(before, schema), `two schemas are named ${title}`);
  found[title] = schema;
  return { $ref: `#/components/schemas/${title}` };
}

function descend(schema: SchemaObject, found: Components, is_answer: boolean): SchemaObject {
  const deeper = (inner: SchemaObject) => hoist(inner, found, is_answer);
  const field = (name: string, inner: SchemaObject) =>
    deeper(
      is_answer && /(^|_)id$/.test(name) && inner.type === 'string' ? { maxLength: MAX_ID, ...inner } : inner,
    );
  const all = (of: Components) => Object.fromEntries(Object.entries(of).map(([k, v]) => [k, field(k, v)]));
  const { properties, patternProperties, additionalProperties, items, anyOf } = schema;
  return {
    ...schema,
    ...(properties ? { properties: all(properties) } : {}),
    ...(patternProperties ? { patternProperties: all(patternProperties) } : {}),
    ...(typeof additionalProperties === 'object'
      ? { additionalProperties: deeper(additionalProperties) }
      : {}),
    ...(items ? { items: deeper(items) } : {}),
    ...(anyOf ? { anyOf: anyOf.map(deeper) } : {}),
  };
}

/** Every number says its format; what we answer also says its bounds. */
function bounded(schema: SchemaObject, is_answer: boolean): SchemaObject {
  const { type } = schema;
  if (type === 'integer') {
    const limits = is_answer ? { minimum: 0, maximum: MAX_INTEGER, ...schema } : schema;
    const wide = (limits.maximum ?? MAX_INTEGER) > INT32_MAX;
    return { format: wide ? 'int64' : 'int32', ...limits };
  }
  if (!is_answer) return schema;
  if (type === 'string' && schema.enum === undefined && schema.const === undefined) {
    return { maxLength: schema.format === 'date-time' ? 24 : MAX_ANSWER_TEXT, ...schema };
  }
  return type === 'array' ? { maxItems: MAX_ANSWER_ITEMS, ...schema } : schema;
}
