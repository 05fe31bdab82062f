/**
 * Writes what of the Python package is not written by hand (docs/adr/0063-python.md): `types.py` and `operations.py` from
 * `openapi/v1.json`, and the blocking shape in `_sync` from the sources in `aio`. Like client/generate.ts, it supports exactly
 * the JSON Schema that our document uses, and fails on anything else.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { OpenApi, Operation, Schema } from '../client/generate.ts';

const PACKAGE = join(import.meta.dirname, 'src', 'berth');
const DOCUMENT = join(import.meta.dirname, '..', 'openapi', 'v1.json');
const HEAD = '# Written by `npm run openapi`; do not change by hand.\n';
/** The network is the one part that each shape has its own of. */
const BY_HAND = ['_network.py'];

const lastOf = (ref: string) => ref.slice(ref.lastIndexOf('/') + 1);
const typeName = (name: string) => (name === 'Error' ? 'ErrorBody' : name);
const pascal = (name: string) =>
  name.replace(/(?:^|[^A-Za-z0-9])([a-z0-9])/gi, (_, first: string) => first.toUpperCase());
const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const literal = (value: unknown) => (value === null ? 'None' : JSON.stringify(value));

function unionOf(types: readonly string[]): string {
  const all = [...new Set(types)];
  if (all.length === 1) return all[0] ?? '';
  const some = all.filter((type) => type !== 'None');
  const [only] = some;
  const joined = some.length === 1 ? only : `Union[${some.join(', ')}]`;
  return some.length === all.length ? `${joined}` : `Optional[${joined}]`;
}

/** A TypedDict has a name, so an object inside of another gets one too. */
class Types {
  readonly #classes: string[] = [];
  readonly #aliases: string[] = [];
  readonly #names = new Set<string>();

  add(name: string, schema: Schema): void {
    if (isRecord(schema)) this.#class(name, schema);
    else this.#aliases.push(`${this.#named(name)} = ${this.of(schema, name)}\n`);
  }

  text(): string {
    const imports = 'from typing import Any, Dict, List, Literal, Optional, TypedDict, Union\n';
    return [
      `${HEAD}from __future__ import annotations\n\n${imports}`,
      ...this.#classes,
      ...this.#aliases,
    ].join('\n');
  }

  /** @param within the name of an object that the schema is */
  of(schema: Schema, within: string): string {
    if (schema.$ref !== undefined) return typeName(lastOf(schema.$ref));
    if (schema.anyOf) {
      const one = schema.anyOf.filter(isRecord).length === 1 && !this.#names.has(within);
      return unionOf(
        schema.anyOf.map((each, index) => this.of(each, one ? within : `${within}${index + 1}`)),
      );
    }
    if (schema.enum) return unionOfLiterals(schema.enum);
    if (Array.isArray(schema.type))
      return unionOf(schema.type.map((type) => this.of({ ...schema, type }, within)));
    switch (schema.type) {
      case 'string':
        return 'str';
      case 'boolean':
        return 'bool';
      case 'null':
        return 'None';
      case 'integer':
        return 'int';
      case 'number':
        return 'float';
      case 'array':
        return `List[${this.of(schema.items ?? {}, `${within}Item`)}]`;
      case 'object':
        return this.#object(schema, within);
      case undefined:
        return 'Any';
      default:
        throw new Error(`no type for ${JSON.stringify(schema)}`);
    }
  }

  #object(schema: Schema, within: string): string {
    if (isRecord(schema)) return this.#class(within, schema);
    const [of_any_key = schema.additionalProperties] = Object.values(schema.patternProperties ?? {});
    return `Dict[str, ${typeof of_any_key === 'object' ? this.of(of_any_key, `${within}Value`) : 'Any'}]`;
  }

  #named(name: string): string {
    if (this.#names.has(name)) throw new Error(`two types are called ${name}`);
    this.#names.add(name);
    return name;
  }

  /** Keys that may be absent are in a class of their own: NotRequired is of Python 3.11. */
  #class(given: string, { description, properties = {}, required = [] }: Schema): string {
    const name = this.#named(given);
    const fields = Object.entries(properties).map(([key, schema]) => {
      const type = this.of(schema, name + pascal(key));
      return { key, type, required: required.includes(key), description: schema.description };
    });
    // A class cannot have these keys.
    if (fields.some(({ key }) => key === 'from' || !/^\w+$/.test(key))) {
      const total = fields.every((field) => field.required);
      if (!total && fields.some((field) => field.required)) throw new Error(`${name} needs a class`);
      const entries = fields.map(({ key, type }) => `        "${key}": ${JSON.stringify(type)},\n`).join('');
      const more = total ? '' : '    total=False,\n';
      this.#classes.push(`${name} = TypedDict(\n    "${name}",\n    {\n${entries}    },\n${more})\n`);
      return name;
    }
    const lines = (list: typeof fields) =>
      list.map((field) => `    ${field.key}: ${field.type}\n${docstring(field.description)}`).join('');
    const always = fields.filter((field) => field.required);
    const sometimes = fields.filter((field) => !field.required);
    const about = docstring(description);
    const body = (text: string) => (text === '' ? '    pass\n' : text);
    if (sometimes.length === 0)
      this.#classes.push(`class ${name}(TypedDict):\n${body(about + lines(always))}`);
    else if (always.length === 0)
      this.#classes.push(`class ${name}(TypedDict, total=False):\n${about}${lines(sometimes)}`);
    else
      this.#classes.push(
        `class _${name}Required(TypedDict):\n${lines(always)}\n\nclass ${name}(_${name}Required, total=False):\n${about}${lines(sometimes)}`,
      );
    return name;
  }
}

const isRecord = ({ type, properties }: Schema) =>
  type === 'object' && Object.keys(properties ?? {}).length > 0;
const unionOfLiterals = (values: readonly unknown[]) => `Literal[${values.map(literal).join(', ')}]`;

function docstring(text: string | undefined): string {
  if (text === undefined) return '';
  const safe = text.replaceAll('\\', '\\\\').replaceAll('"', "'").replaceAll('\n', ' ');
  return `    """${safe}"""\n`;
}

interface Answer {
  readonly type: string;
  readonly kind: 'json' | 'text' | 'bytes' | 'nothing';
  /** The type of an item, if the answer is a page of a list. */
  readonly item: string | null;
}

function answerOf({ operationId, responses }: Operation, document: OpenApi, types: Types): Answer {
  const found: Answer[] = [];
  for (const [status, { content }] of Object.entries(responses)) {
    if (!status.startsWith('2')) continue;
    const schema = content?.['application/json']?.schema;
    if (schema) {
      const name = types.of(schema, `${pascal(operationId)}Answer`);
      found.push({ type: qualified(name), kind: 'json', item: itemOf(name, document) });
    } else if (content === undefined) found.push({ type: 'None', kind: 'nothing', item: null });
    else if (content['application/octet-stream']) found.push({ type: 'bytes', kind: 'bytes', item: null });
    else found.push({ type: 'str', kind: 'text', item: null });
  }
  const [first] = found.toSorted(
    (one, other) => Number(one.kind === 'nothing') - Number(other.kind === 'nothing'),
  );
  if (first === undefined) throw new Error(`${operationId} has no answer`);
  return { ...first, type: unionOf(found.map(({ type }) => type)) };
}

const qualified = (type: string) =>
  type.replace(/\b(?!(?:Any|Dict|List|Literal|Optional|Union)\b)[A-Z]\w*/g, 'types.$&');

function itemOf(name: string, document: OpenApi): string | null {
  const properties = document.components.schemas[name]?.properties;
  if (properties?.['next_cursor'] === undefined) return null;
  const { items } = properties['data'] ?? {};
  if (items?.$ref === undefined) return 'Any';
  return qualified(typeName(lastOf(items.$ref)));
}

function operationsOf(document: OpenApi, types: Types): string {
  const lines = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(([method, operation]) => {
      // A redirect is for browsers.
      if (!Object.keys(operation.responses).some((status) => status.startsWith('2'))) return [];
      const parameters = (operation.parameters ?? []).map((each) =>
        each.$ref === undefined ? each : document.components.parameters[lastOf(each.$ref)],
      );
      const takes_key = parameters.some((each) => each?.name === 'Idempotency-Key');
      const { type, kind, item } = answerOf(operation, document, types);
      const of = item === null ? `Operation[${type}]` : `ListOperation[${type}, ${item}]`;
      const make = item === null ? 'Operation' : 'ListOperation';
      const more = `${takes_key ? ', takes_idempotency_key=True' : ''}${kind === 'json' ? '' : `, answer="${kind}"`}`;
      const name = snake(operation.operationId);
      return `${name}: ${of} = ${make}("${method.toUpperCase()}", "${path}"${more})\n${docstring(operation.summary).trim()}\n`;
    }),
  );
  const imports =
    'from typing import Any, Dict, List, Optional\n\nfrom . import types\nfrom ._operation import ListOperation, Operation\n';
  return `${HEAD}"""Each operation of the API, for \`Berth.call\` and \`Berth.list\`."""\nfrom __future__ import annotations\n\n${imports}\n${lines.join('')}`;
}

const WORDS: readonly (readonly [RegExp, string])[] = [
  [/\basync (def|with|for)\b/g, '$1'],
  [/\bawait /g, ''],
  [/\b__a(enter|exit|iter|next)__/g, '__$1__'],
  [/\bAsync(Iterator|Iterable)\b/g, '$1'],
  [/\bAwaitable\[([^\]]+)\]/g, '$1'],
  [/\bberth\.aio\b/g, 'berth'],
];

/** The blocking shape of a source in `aio`: the same text without its waits. */
export function blocking(source: string): string {
  return HEAD + WORDS.reduce((text, [word, replacement]) => text.replace(word, replacement), source);
}

/** Each file that is written, by its path. */
export function generatePython(): ReadonlyMap<string, string> {
  const document = JSON.parse(readFileSync(DOCUMENT, 'utf8')) as OpenApi;
  const types = new Types();
  for (const [name, schema] of Object.entries(document.components.schemas)) types.add(typeName(name), schema);
  const operations = operationsOf(document, types);
  const files = new Map([
    [join(PACKAGE, 'types.py'), types.text()],
    [join(PACKAGE, 'operations.py'), operations],
  ]);
  for (const name of readdirSync(join(PACKAGE, 'aio'))) {
    if (!name.endsWith('.py') || name === '__init__.py' || BY_HAND.includes(name)) continue;
    files.set(join(PACKAGE, '_sync', name), blocking(readFileSync(join(PACKAGE, 'aio', name), 'utf8')));
  }
  return files;
}

if (import.meta.main) for (const [path, text] of generatePython()) writeFileSync(path, text);
