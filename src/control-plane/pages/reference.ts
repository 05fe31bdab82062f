/**
 * Renders the API reference as one page of HTML, from the API document: every operation with its access, parameters,
 * body, a curl command, answers and errors; then schemas and error codes. Only `html` makes markup, and it escapes all
 * texts.
 */
import { STATUS_CODES } from 'node:http';
import { ERROR_CODES } from '../../shared/errors.ts';
import { ROLES } from '../../shared/roles.ts';
import { rolesOf } from '../http/access.ts';
import { OF_PATTERN } from '../http/errors.ts';
import {
  type DocumentObject,
  JSON_TYPE,
  MAX_ANSWER_ITEMS,
  MAX_ANSWER_TEXT,
  type OperationObject,
  type ParameterObject,
  type Reference,
  type ResponseObject,
  type SchemaObject,
} from '../http/openapi-schemas.ts';

// The curl command of an operation, for a shell. Pure.

export interface Called {
  readonly origin: string;
  readonly method: string;
  readonly path: string;
  readonly operation: OperationObject;
}

/** The variables that hold the caller's credentials. */
const VARIABLES = { api_key: 'BERTH_API_KEY', session: 'BERTH_SESSION', sudo: 'BERTH_SUDO' } as const;

/** One word of a POSIX shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** `/v1/instances/{id}` → `/v1/instances/$ID`; the names are those of the document. */
function withVariables(path: string): string {
  return path.replaceAll(/\{([a-z_]+)\}/g, (_, name: string) => `$${name.toUpperCase()}`);
}

export function curlExample({ origin, method, path, operation }: Called): string {
  const { 'x-access': access, requestBody, responses } = operation;
  const token = access.kind === 'session' ? VARIABLES.session : VARIABLES.api_key;
  const example = requestBody?.content[JSON_TYPE]?.example;
  const is_empty = example === undefined || Object.keys(example as object).length === 0;
  const streams = Object.values(responses).some(
    (response) => 'content' in response && response.content?.['text/event-stream'] !== undefined,
  );
  const verb = method === 'get' ? '' : `-X ${method.toUpperCase()} `;
  return [
    `curl ${streams ? '-N ' : ''}${verb}"${origin}${withVariables(path)}"`,
    ...(access.kind === 'public' ? [] : [`-H "Authorization: Bearer $${token}"`]),
    ...(access.sudo ? [`-b "__Secure-berth_sudo=$${VARIABLES.sudo}"`] : []),
    ...(is_empty
      ? []
      : [`-H 'Content-Type: application/json'`, `-d ${quoted(JSON.stringify(example, null, 2))}`]),
  ].join(' \\\n  ');
}

// Markup in which every text is escaped: only `html` makes it.

class Markup {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

export type Child = Markup | string | number | null | readonly Child[];

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function textOf(child: Child): string {
  if (child === null) return '';
  if (child instanceof Markup) return child.text;
  if (typeof child === 'object') return child.map(textOf).join('');
  return String(child).replaceAll(/[&<>"']/g, (character) => ESCAPES[character] ?? '');
}

/** html`<p>${text}</p>`; attributes must be quoted. */
export function html(parts: TemplateStringsArray, ...children: readonly Child[]): Markup {
  return new Markup(parts.map((part, at) => part + textOf(children[at] ?? null)).join(''));
}

/** The children with `between` between them. */
export function joined(children: readonly Child[], between: Child): Child {
  return children.flatMap((child, at) => (at === 0 ? [child] : [between, child]));
}

/** The Markdown that descriptions use: paragraphs, `code` and **bold**. */
export function prose(text: string): Child {
  return text.split('\n\n').map((paragraph) => html`<p>${inline(paragraph)}</p>`);
}

export function inline(text: string): Child {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith('`') && part.length > 2) return html`<code>${part.slice(1, -1)}</code>`;
    if (part.startsWith('**') && part.length > 4) return html`<strong>${part.slice(2, -2)}</strong>`;
    return part;
  });
}

// A schema in words: its type, its limits, and the fields of an object.

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

function schemaId(name: string): string {
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

export type BodySide = 'request' | 'answer';

export interface FieldEntry {
  readonly name: string;
  readonly schema: SchemaObject;
  readonly description?: string | undefined;
  readonly required: boolean;
}

/** A list of names with what each means. Fields of an object that is only used here are listed below it. */
function fieldList(entries: readonly FieldEntry[], shown: Shown, place: BodySide): Markup {
  return html`<dl class="fields">${entries.map((entry) => fieldOf(entry, shown, place))}</dl>`;
}

/** In a request a field may be absent, in an answer it is there; only the other case is noted. */
function noteOf(required: boolean, place: BodySide): Child {
  if (required === (place === 'answer')) return null;
  return html` <span class="note">${required ? 'required' : 'may be absent'}</span>`;
}

function fieldOf({ name, schema, description, required }: FieldEntry, shown: Shown, place: BodySide): Markup {
  const inner = followed(schema, shown);
  const limits = limitsOf(inner).map((limit) => ['; ', limit]);
  const told = description ?? inner.description ?? inner.anyOf?.find((each) => each.description)?.description;
  const nested = followed(inner.items ?? inner, shown);
  return html`<div><dt><code>${name}</code>${noteOf(required, place)}</dt><dd>
<p class="type">${typeOf(schema, shown)}${limits}</p>
${told === undefined ? null : html`<p>${inline(told)}</p>`}
${schemaFields(nested, shown, place)}
</dd></div>`;
}

/** The fields of an object, or of each of its forms. Null for a schema without fields. */
function schemaFields(schema: SchemaObject, shown: Shown, place: BodySide): Child {
  const { anyOf, properties, required = [] } = schema;
  const forms = (anyOf ?? []).map((form) => followed(form, shown)).filter((form) => form.properties);
  if (forms.length > 0) {
    const lists = forms.map((form) => schemaFields(form, shown, place));
    return joined(lists, html`<p class="or">or</p>`);
  }
  if (!properties || Object.keys(properties).length === 0) return null;
  const entries = Object.entries(properties).map(([name, field]) => {
    return { name, schema: field, required: required.includes(name) };
  });
  return fieldList(entries, shown, place);
}

// An operation of the API: access, parameters, body, a curl command, answers and errors.

export interface Shower {
  readonly document: DocumentObject;
  readonly shown: Shown;
  readonly origin: string;
}

export interface Route {
  readonly method: string;
  readonly path: string;
  readonly operation: OperationObject;
}

const PLACES = [
  ['path', 'Path'],
  ['query', 'Query'],
  ['header', 'Headers'],
] as const;

export const nameOf = (reference: string) => reference.slice(reference.lastIndexOf('/') + 1);
const errorId = (code: string) => `error-${code}`;
const headerId = (name: string) => `header-${name}`;

function operationArticle(shower: Shower, route: Route): Markup {
  const { method, path, operation } = route;
  const { operationId: id, summary, description = '' } = operation;
  return html`<article id="${id}" class="entry">
<h3><a href="#${id}">${summary}</a></h3>
<p class="route"><code><strong class="method ${method}">${method.toUpperCase()}</strong> ${path}</code></p>
${prose(description)}
${rolesLine(operation)}
${parameters(shower, operation)}
${body(shower, operation)}
<h4>Example</h4>
${code(curlExample({ ...route, origin: shower.origin }), `the curl command of: ${summary}`)}
${answers(shower, operation)}
${errors(shower, operation)}
</article>`;
}

/** With a button that copies it, which the page's script shows. */
function code(text: string, what: string): Markup {
  return html`<div class="code"><pre><code>${text}</code></pre><button type="button" class="copy" hidden aria-label="Copy ${what}">Copy</button></div>`;
}

function rolesLine({ 'x-access': access }: OperationObject): Child {
  const roles = rolesOf(access);
  if (access.kind === 'public' || roles.length === ROLES.length) return null;
  return html`<p><strong>Roles with that access</strong>: ${roles.join(', ')}.</p>`;
}

function parameterOf({ document }: Shower, given: ParameterObject | Reference): ParameterObject {
  if (!('$ref' in given)) return given;
  return document.components.parameters[nameOf(given.$ref)] ?? { name: given.$ref, in: 'header', schema: {} };
}

function parameters(shower: Shower, { parameters: given = [] }: OperationObject): Child {
  const all = given.map((each) => parameterOf(shower, each));
  return PLACES.map(([place, title]) => {
    const here = all.filter((each) => each.in === place);
    if (here.length === 0) return null;
    const entries = here.map(({ required = false, ...rest }) => ({ ...rest, required }));
    return html`<h4>${title}</h4>${fieldList(entries, shower.shown, 'request')}`;
  });
}

function body({ shown }: Shower, { requestBody }: OperationObject): Child {
  const media = requestBody?.content[JSON_TYPE];
  if (!media) return null;
  const fields = schemaFields(followed(media.schema, shown), shown, 'request');
  // A body without fields need not be sent.
  if (fields === null) return null;
  return html`<h4>Body</h4><p class="type">${titleOf(media.schema, shown)}</p>${fields}`;
}

function answers(shower: Shower, { responses, summary }: OperationObject): Child {
  return Object.entries(responses)
    .filter(([status]) => status < '400')
    .map(([status, response]) => answer(shower, status, response as ResponseObject, summary));
}

/** A link to the schema, the name that clients know it by, or what it is. */
function titleOf(schema: SchemaObject | Reference, shown: Shown): Child {
  if (followed(schema, shown) === schema || schema.$ref === undefined) return typeOf(schema, shown);
  return html`<code>${nameOf(schema.$ref)}</code>`;
}

/** What the status says already. */
const OF_STATUS: readonly string[] = ['Done.', 'Created.', 'Accepted.', 'No content'];

function answer({ shown }: Shower, status: string, response: ResponseObject, summary: string): Markup {
  const { description, content = {}, headers = {} } = response;
  const media = content[JSON_TYPE];
  const schema = media && followed(media.schema, shown);
  const fields = schema ? schemaFields(schema, shown, 'answer') : null;
  const other = Object.keys(content).find((type) => type !== JSON_TYPE);
  const type = media === undefined ? (other ?? null) : titleOf(media.schema, shown);
  const own = Object.keys(headers).filter((name) => !COMMON.includes(name));
  const told = OF_STATUS.includes(description) ? null : html`<p>${inline(description)}</p>`;
  const example = media && code(JSON.stringify(media.example, null, 2), `the answer of: ${summary}`);
  return html`<h4>Answer ${status} ${STATUS_CODES[status] ?? ''}</h4>
${told}
${type === null ? null : html`<p class="type">${type}</p>`}
${fields}
${own.length === 0 ? null : html`<p>Headers: ${joined(own.map(headerLink), ', ')}.</p>`}
${example === undefined ? null : html`<details><summary>Example of an answer</summary>${example}</details>`}`;
}

/** On every answer; the page explains them once. */
const COMMON: readonly string[] = ['X-Request-Id', 'RateLimit-Policy', 'RateLimit'];

function headerLink(name: string): Markup {
  return html`<a href="#${headerId(name)}"><code>${name}</code></a>`;
}

function errors({ document }: Shower, { responses }: OperationObject): Markup {
  const codes = Object.entries(responses).flatMap(([status, response]) => {
    if (!('$ref' in response)) return [];
    const { content } = document.components.responses[nameOf(response.$ref)] ?? {};
    return Object.keys(content?.[JSON_TYPE]?.examples ?? {}).map((code) => ({ status, code }));
  });
  const links = codes.map(
    ({ status, code: name }) => html`<li><a href="#${errorId(name)}">${status} <code>${name}</code></a></li>`,
  );
  return html`<h4>Errors</h4><ul class="errors">${links}</ul>`;
}

export interface PageParts {
  readonly document: DocumentObject;
  /** For the curl commands. */
  readonly origin: string;
  /** Paths of the script and the style sheet; null: not built. */
  readonly script: string | null;
  readonly style: string | null;
}

export function referencePage({ document, origin, script, style }: PageParts): string {
  const shower: Shower = { document, origin, shown: shownOf(document) };
  const groups = groupsOf(document);
  const schemas = Object.keys(document.components.schemas).filter(shower.shown.has_section);
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Berth API reference</title>
<link rel="icon" href="data:,">
${style === null ? null : html`<link rel="stylesheet" href="${style}">`}
${script === null ? null : html`<script type="module" async src="${script}"></script>`}
</head>
<body class="reference">
<a class="skip" href="#content">Skip to the content</a>
${navigation(groups, schemas)}
<main id="content" tabindex="-1">
${introduction(shower)}
${groups.map((group) => groupSection(shower, group))}
${schemaSection(shower, schemas)}
${errorSection()}
</main>
</body>
</html>
`.text;
}

interface Group {
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly routes: readonly Route[];
}

function groupsOf({ tags, paths }: DocumentObject): Group[] {
  const routes = Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({ method, path, operation })),
  );
  return tags.map(({ name, description }) => ({
    id: `group-${name.toLowerCase().replaceAll(' ', '-')}`,
    name,
    description,
    routes: routes.filter(({ operation }) => operation.tags.includes(name)),
  }));
}

/** A reference is counted in operations and in schemas. */
function shownOf({ components, paths }: DocumentObject): Shown {
  const uses = new Map<string, number>();
  JSON.stringify({ paths, schemas: components.schemas }, (key, value) => {
    if (key === '$ref' && typeof value === 'string') uses.set(value, (uses.get(value) ?? 0) + 1);
    return value;
  });
  return {
    of: (reference) => {
      const name = nameOf(reference);
      return { name, schema: components.schemas[name] ?? {} };
    },
    has_section: (name) =>
      (uses.get(`#/components/schemas/${name}`) ?? 0) > 1 &&
      components.schemas[name]?.properties !== undefined &&
      Object.keys(components.schemas[name].properties).length > 0,
  };
}

function navigation(groups: readonly Group[], schemas: readonly string[]): Markup {
  const list = (title: string, links: Child) =>
    html`<details><summary>${title}</summary><ul>${links}</ul></details>`;
  const link = (id: string, text: string) => html`<li><a href="#${id}">${text}</a></li>`;
  return html`<nav class="contents" aria-label="Reference">
<p class="brand"><a href="#content">Berth API</a></p>
<div class="search" hidden>
<label for="search">Search</label>
<input id="search" type="search" autocomplete="off" spellcheck="false" placeholder="flush, wake_on_connect, vm:write">
<p id="found" class="hint" role="status"></p>
</div>
<div class="groups">
${groups.map(({ name, routes }) =>
  list(
    name,
    routes.map(({ operation }) => link(operation.operationId, operation.summary)),
  ),
)}
${list(
  'Schemas',
  schemas.map((name) => link(schemaId(name), name)),
)}
</div>
<ul class="more"><li><a href="#errors">Errors</a></li><li><a href="/v1/openapi.json">openapi.json</a></li><li><a href="/docs">Documentation</a></li><li><a href="/">Console</a></li></ul>
</nav>`;
}

function introduction({ document, origin }: Shower): Markup {
  const { info, components } = document;
  const headers = Object.entries(components.headers).map(
    ([name, { description }]) =>
      html`<div id="${headerId(name)}"><dt><code>${name}</code></dt><dd><p>${inline(description)}</p></dd></div>`,
  );
  return html`<section class="introduction">
<h1>Berth API</h1>
<p class="hint">Version ${info.version}, at ${origin}</p>
${prose(info.description)}
<p>The examples take an API key from <code>$${VARIABLES.api_key}</code>. Where only a session may call, they take its token from <code>$${VARIABLES.session}</code>: the <code>session_token</code> that <a href="#login">a login</a> answers with. <code>$${VARIABLES.sudo}</code> is the cookie of <a href="#grantSudo">a sudo grant</a>.</p>
<h2 id="headers">Headers of answers</h2>
<dl class="fields">${headers}</dl>
</section>`;
}

function groupSection(shower: Shower, { id, name, description, routes }: Group): Markup {
  return html`<section class="group" aria-labelledby="${id}">
<h2 id="${id}">${name}</h2>
${prose(description)}
${routes.map((route) => operationArticle(shower, route))}
</section>`;
}

function schemaSection({ document, shown }: Shower, names: readonly string[]): Markup {
  const entries = names.map((name) => {
    const schema = document.components.schemas[name] ?? {};
    return html`<article id="${schemaId(name)}" class="entry">
<h3><a href="#${schemaId(name)}">${name}</a></h3>
${schema.description === undefined ? null : prose(schema.description)}
${schemaFields(schema, shown, name.endsWith('Request') ? 'request' : 'answer') ?? html`<p>${typeOf(schema, shown)}</p>`}
</article>`;
  });
  return html`<section class="group" aria-labelledby="schemas"><h2 id="schemas">Schemas</h2>${entries}</section>`;
}

function errorSection(): Markup {
  const rows = Object.entries(ERROR_CODES).map(
    ([code, { status, message }]) =>
      html`<div id="${errorId(code)}"><dt>${status} <code>${code}</code></dt><dd><p>${message}</p></dd></div>`,
  );
  return html`<section class="group" aria-labelledby="errors">
<h2 id="errors">Errors</h2>
<p>Every error has the body of the schema <code>Error</code>. Programs read <code>code</code>, people <code>message</code>.</p>
<dl class="fields">${rows}</dl>
</section>`;
}
