/** A schema in words: its type, its limits, and the fields of an object. */
import { OF_PATTERN } from '../../http/errors.ts';
import { MAX_ANSWER_ITEMS, MAX_ANSWER_TEXT } from '../../http/openapi/schemas.ts';
import type { SchemaObject } from '../../http/openapi/types.ts';
import { type Child, html, inline, joined, type Markup } from './markup.ts';

/** The schemas that the page shows in a section of their own; others are shown where they are used. */
export interface Shown {
  readonly of: (reference: string) => { readonly name: string; readonly schema: SchemaObject };
  readonly has_section: (name: string) => boolean;
}

const TYPES: Readonly<Record<string, string>> = {
  string: 'text',
  integer: 'whole number',
  number: 'number',
  boolean: 'true or false',
  object: 'object',
  null: 'null',
};

export function schemaId(name: string): string {
  return `schema-${name}`;
}

/** The schema that is shown in place of a reference to one without a section. */
export function followed(schema: SchemaObject, shown: Shown): SchemaObject {
  if (schema.$ref === undefined) return schema;
  const found = shown.of(schema.$ref);
  return shown.has_section(found.name) ? schema : found.schema;
}

export function typeOf(given: SchemaObject, shown: Shown): Child {
  const schema = followed(given, shown);
  if (schema.$ref !== undefined) {
    const { name } = shown.of(schema.$ref);
    return html`<a href="#${schemaId(name)}">${name}</a>`;
  }
  if (schema.anyOf) return alternatives(schema.anyOf, shown);
  if (schema.enum) {
    return joined(
      schema.enum.map((value) => html`<code>${JSON.stringify(value)}</code>`),
      ' or ',
    );
  }
  if (schema.format === 'date-time') return 'time (RFC 3339)';
  if (schema.items) return ['list of ', typeOf(schema.items, shown)];
  const values = valuesOf(schema);
  if (values) return ['object whose values are ', typeOf(values, shown)];
  const types = [schema.type ?? 'any'].flat();
  return types.map((type) => TYPES[type] ?? type).join(' or ');
}

function alternatives(of: readonly SchemaObject[], shown: Shown): Child {
  const found = of.map((each) => typeOf(each, shown));
  // Objects that differ in their fields alone read alike.
  return joined(
    found.filter((each, at) => typeof each !== 'string' || found.indexOf(each) === at),
    ' or ',
  );
}

/** The schema of the values, where any key is allowed. */
function valuesOf({
  additionalProperties: any_key,
  patternProperties,
}: SchemaObject): SchemaObject | undefined {
  if (typeof any_key === 'object') return any_key;
  return Object.values(patternProperties ?? {})[0];
}

/** The limits and the default. The bounds that every answer states say nothing of the field. */
function limitsOf(schema: SchemaObject): string[] {
  const inner = schema.anyOf?.find(({ type }) => type !== 'null') ?? schema;
  const { minLength = 0, maxLength, minimum = 0, maximum, maxItems, pattern, format } = inner;
  const rule = pattern === undefined ? undefined : OF_PATTERN[pattern];
  // The rule may tell the length already.
  const is_told = maxLength === MAX_ANSWER_TEXT || format === 'date-time' || /^must be 1 to/.test(rule ?? '');
  const most = is_told ? undefined : maxLength;
  return [
    ...(most === undefined ? [] : [range(minLength, most, 'characters')]),
    ...(maximum === undefined || maximum === Number.MAX_SAFE_INTEGER ? [] : [range(minimum, maximum, '')]),
    ...(maxItems === undefined || maxItems === MAX_ANSWER_ITEMS ? [] : [`at most ${maxItems} entries`]),
    ...(rule === undefined ? [] : [rule.replace(/^must be (?=1 to)/, '')]),
    ...(schema.default === undefined ? [] : [`default: ${JSON.stringify(schema.default)}`]),
  ];
}

function range(least: number, most: number, unit: string): string {
  const amount = least === 0 && unit !== '' ? `at most ${most}` : `${least} to ${most}`;
  return unit === '' ? amount : `${amount} ${unit}`;
}

export type Place = 'request' | 'answer';

export interface FieldEntry {
  readonly name: string;
  readonly schema: SchemaObject;
  readonly description?: string | undefined;
  readonly required: boolean;
}

/** A list of names with what each means. Fields of an object that is only used here are listed below it. */
export function fieldList(entries: readonly FieldEntry[], shown: Shown, place: Place): Markup {
  return html`<dl class="fields">${entries.map((entry) => fieldOf(entry, shown, place))}</dl>`;
}

/** In a request a field may be absent, in an answer it is there; only the other case is noted. */
function noteOf(required: boolean, place: Place): Child {
  if (required === (place === 'answer')) return null;
  return html` <span class="note">${required ? 'required' : 'may be absent'}</span>`;
}

function fieldOf({ name, schema, description, required }: FieldEntry, shown: Shown, place: Place): Markup {
  const inner = followed(schema, shown);
  const limits = limitsOf(inner).map((limit) => ['; ', limit]);
  const told = description ?? inner.description ?? inner.anyOf?.find((each) => each.description)?.description;
  const nested = followed(inner.items ?? inner, shown);
  return html`<div><dt><code>${name}</code>${noteOf(required, place)}</dt><dd>
<p class="type">${typeOf(schema, shown)}${limits}</p>
${told === undefined ? null : html`<p>${inline(told)}</p>`}
${fieldsOf(nested, shown, place)}
</dd></div>`;
}

/** The fields of an object, or of each of its forms. Null for a schema without fields. */
export function fieldsOf(schema: SchemaObject, shown: Shown, place: Place): Child {
  const { anyOf, properties, required = [] } = schema;
  const forms = (anyOf ?? []).map((form) => followed(form, shown)).filter((form) => form.properties);
  if (forms.length > 0) {
    const lists = forms.map((form) => fieldsOf(form, shown, place));
    return joined(lists, html`<p class="or">or</p>`);
  }
  if (!properties || Object.keys(properties).length === 0) return null;
  const entries = Object.entries(properties).map(([name, field]) => {
    return { name, schema: field, required: required.includes(name) };
  });
  return fieldList(entries, shown, place);
}
