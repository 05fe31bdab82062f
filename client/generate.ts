/**
 * Writes `client/src/generated.ts` from `openapi/v1.json`: a type for each schema, and for each operation its method,
 * path, input and answer. It supports exactly the JSON Schema that our document uses, and fails on anything else
 * (docs/adr/0062-client.md).
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export interface Schema {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly enum?: readonly unknown[];
  readonly anyOf?: readonly Schema[];
  readonly items?: Schema;
  readonly required?: readonly string[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly patternProperties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly description?: string;
}
interface Content {
  readonly content?: Readonly<Record<string, { readonly schema: Schema }>>;
}
interface Parameter {
  readonly $ref?: string;
  readonly name: string;
  readonly in: 'path' | 'query' | 'header';
  readonly required?: boolean;
  readonly schema: Schema;
}
export interface Operation {
  readonly operationId: string;
  readonly summary: string;
  readonly parameters?: readonly Parameter[];
  readonly requestBody?: Content & { readonly required?: boolean };
  readonly responses: Readonly<Record<string, Content>>;
}
export interface OpenApi {
  readonly components: {
    readonly schemas: Readonly<Record<string, Schema>>;
    readonly parameters: Readonly<Record<string, Parameter>>;
  };
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
}

const lastOf = (ref: string) => ref.slice(ref.lastIndexOf('/') + 1);
/** A type called Error would hide JavaScript's own. */
const typeName = (name: string) => (name === 'Error' ? 'ErrorBody' : name);
const key = (name: string) => (/^[a-z_]\w*$/i.test(name) ? name : `'${name}'`);
const union = (types: readonly string[]) => [...new Set(types)].join(' | ');
const literal = (value: unknown) =>
  typeof value === 'string' ? `'${value.replaceAll("'", "\\'")}'` : JSON.stringify(value);

function comment(text: string | undefined, indent: string): string {
  return text === undefined ? '' : `${indent}/** ${text.replaceAll('*/', '* /').replaceAll('\n', ' ')} */\n`;
}

function typeOf(schema: Schema, indent: string): string {
  if (schema.$ref !== undefined) return typeName(lastOf(schema.$ref));
  if (schema.anyOf) return union(schema.anyOf.map((each) => typeOf(each, indent)));
  if (schema.enum) return union(schema.enum.map(literal));
  if (Array.isArray(schema.type))
    return union(schema.type.map((type) => typeOf({ ...schema, type }, indent)));
  switch (schema.type) {
    case 'string':
    case 'boolean':
    case 'null':
      return schema.type;
    case 'integer':
    case 'number':
      return 'number';
    case 'array':
      return `Array<${typeOf(schema.items ?? {}, indent)}>`;
    case 'object':
      return objectOf(schema, indent);
    case undefined:
      return 'unknown';
    default:
      throw new Error(`no type for ${JSON.stringify(schema)}`);
  }
}

function objectOf(schema: Schema, indent: string): string {
  const { properties = {}, required = [], patternProperties = {}, additionalProperties } = schema;
  const deeper = `${indent}  `;
  const lines = Object.entries(properties).map(([name, each]) => {
    const optional = !required.includes(name);
    const type = typeOf(each, deeper);
    const line = `${deeper}${key(name)}${optional ? '?' : ''}: ${type}${optional ? ' | undefined' : ''};\n`;
    return comment(each.description, deeper) + line;
  });
  const [of_any_key = additionalProperties] = Object.values(patternProperties);
  if (typeof of_any_key === 'object' && lines.length === 0) {
    return `Record<string, ${typeOf(of_any_key, indent)}>`;
  }
  if (additionalProperties === true) lines.push(`${deeper}[more: string]: unknown;\n`);
  if (lines.length === 0) return 'Record<string, never>';
  return `{\n${lines.join('')}${indent}}`;
}

function inputOf(parameters: readonly Parameter[], body: Operation['requestBody']): string {
  const within = (place: Parameter['in']) => parameters.filter((each) => each.in === place);
  const fields = (list: readonly Parameter[]) =>
    list
      .map(({ name, required, schema }) => {
        const type = typeOf(schema, '    ');
        return required === true ? `${key(name)}: ${type}` : `${key(name)}?: ${type} | undefined`;
      })
      .join('; ');
  const parts: string[] = [];
  if (within('path').length > 0) parts.push(`path: { ${fields(within('path'))} }`);
  if (within('query').length > 0) parts.push(`query?: { ${fields(within('query'))} } | undefined`);
  const schema = body?.content?.['application/json']?.schema;
  if (schema) {
    const type = typeOf(schema, '    ');
    parts.push(body.required === true ? `body: ${type}` : `body?: ${type} | undefined`);
  }
  if (body?.content?.['application/octet-stream']) parts.push('body?: RawBody | undefined');
  return parts.length === 0 ? 'Record<string, never>' : `{ ${parts.join('; ')} }`;
}

/** The type of the successes: their body, text, or nothing. */
function answerOf(responses: Operation['responses']): string {
  const good = Object.entries(responses).filter(([status]) => status.startsWith('2'));
  return union(
    good.map(([, { content }]) => {
      if (content === undefined) return 'undefined';
      const json = content['application/json'];
      return json ? typeOf(json.schema, '    ') : 'string';
    }),
  );
}

const RAW_BODY = `/** A body that is sent as it is; a stream is sent while it is read. */
export type RawBody = string | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;
`;

export function generate(document: OpenApi): string {
  const types = Object.entries(document.components.schemas).map(
    ([name, schema]) =>
      `${comment(schema.description, '')}export type ${typeName(name)} = ${typeOf(schema, '')};\n`,
  );
  const shapes: string[] = [];
  const table: string[] = [];
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      // A redirect is for browsers.
      if (!Object.keys(operation.responses).some((status) => status.startsWith('2'))) continue;
      const parameters = (operation.parameters ?? []).map((each) => {
        const found = each.$ref === undefined ? each : document.components.parameters[lastOf(each.$ref)];
        if (!found) throw new Error(`${operation.operationId}: no parameter ${each.$ref}`);
        return found;
      });
      const takes_key = parameters.some(({ name }) => name === 'Idempotency-Key');
      const text = comment(operation.summary, '  ');
      const input = inputOf(parameters, operation.requestBody);
      const answer = answerOf(operation.responses);
      shapes.push(
        `${text}  ${operation.operationId}: {\n    input: ${input};\n    answer: ${answer};\n  };\n`,
      );
      const upper = method.toUpperCase();
      const answers_text = answer === 'string';
      const takes_bytes = operation.requestBody?.content?.['application/octet-stream'] !== undefined;
      const entry = `{ method: '${upper}', path: '${path}', takes_idempotency_key: ${takes_key}, takes_bytes: ${takes_bytes}, answers_text: ${answers_text} }`;
      table.push(`  ${operation.operationId}: ${entry},\n`);
    }
  }
  return [
    '/** Written by `npm run openapi` from openapi/v1.json; do not change by hand. */\n',
    RAW_BODY,
    ...types,
    `export interface Operations {\n${shapes.join('')}}`,
    `export const OPERATIONS = {\n${table.join('')}} as const;\n`,
  ].join('\n');
}

const DOCUMENT = join(import.meta.dirname, '..', 'openapi', 'v1.json');
export const GENERATED = join(import.meta.dirname, 'src', 'generated.ts');

export function generateFromCommitted(): string {
  return generate(JSON.parse(readFileSync(DOCUMENT, 'utf8')) as OpenApi);
}

if (import.meta.main) writeFileSync(GENERATED, generateFromCommitted());
