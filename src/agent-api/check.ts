/** Checks of what came over the wire, compiled at the first use of each schema. */
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

/** null, or where `value` is not as the schema has it; nothing of what it holds is in it. */
export function problemOf(schema: TSchema, value: unknown): string | null {
  return problem(compiled(schema, false), value);
}

/** The same of an answer, which may hold more than this version knows. */
export function problemOfAnswer(schema: TSchema, value: unknown): string | null {
  return problem(compiled(schema, true), value);
}

function problem(check: ReturnType<typeof Compile>, value: unknown): string | null {
  if (check.Check(value)) return null;
  const [first] = check.Errors(value);
  const where = first?.instancePath.slice(1).replaceAll('/', '.') || 'body';
  return `${where} ${first?.message ?? 'is invalid'}`.slice(0, 300);
}

/** The schema without the word that other fields are refused. */
function opened(schema: TSchema): TSchema {
  const text = JSON.stringify(schema, (key, value) => (key === 'additionalProperties' ? undefined : value));
  return JSON.parse(text) as TSchema;
}
