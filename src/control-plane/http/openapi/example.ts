/**
 * The example of a body, composed from the `examples` that its fields declare. A field with an empty list is left out:
 * it is an alternative to another. A test holds every example against its schema.
 */
import { assert } from '../../../shared/assert.ts';
import type { SchemaObject } from './types.ts';

const EXAMPLE_TIME = '2026-01-15T09:30:00.000Z';

export function exampleOf(schema: SchemaObject): unknown {
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
