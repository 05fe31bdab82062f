/** Validates messages. Each schema is compiled at its first use. */
import type { TSchema } from 'typebox';
import { Compile } from 'typebox/compile';

const strict = new WeakMap<TSchema, ReturnType<typeof Compile>>();
const reading = new WeakMap<TSchema, ReturnType<typeof Compile>>();

function compiled(schema: TSchema, open: boolean): ReturnType<typeof Compile> {
  const known = open ? reading : strict;
  const found = known.get(schema) ?? Compile(open ? opened(schema) : schema);
  known.set(schema, found);
  return found;
}

export function fits(schema: TSchema, value: unknown): boolean {
  return compiled(schema, false).Check(value);
}

/** Where `value` violates the schema, without any content of it; null when it does not. */
export function problemOf(schema: TSchema, value: unknown): string | null {
  return problem(compiled(schema, false), value);
}

/** As {@link problemOf}, but unknown fields are allowed: an answer may come from a newer version. */
export function problemOfAnswer(schema: TSchema, value: unknown): string | null {
  return problem(compiled(schema, true), value);
}

function problem(check: ReturnType<typeof Compile>, value: unknown): string | null {
  if (check.Check(value)) return null;
  const [first] = check.Errors(value);
  const where = first?.instancePath.slice(1).replaceAll('/', '.') || 'body';
  return `${where} ${first?.message ?? 'is invalid'}`.slice(0, 300);
}

/** The schema with unknown fields allowed. */
function opened(schema: TSchema): TSchema {
  const text = JSON.stringify(schema, (key, value) => (key === 'additionalProperties' ? undefined : value));
  return JSON.parse(text) as TSchema;
}
