/** An operation of the API: access, parameters, body, a curl command, answers and errors. */
import { STATUS_CODES } from 'node:http';
import { ROLES } from '../../db/tables.ts';
import { rolesOf } from '../../http/access-of.ts';
import {
  type DocumentObject,
  JSON_TYPE,
  type OperationObject,
  type ParameterObject,
  type Reference,
  type ResponseObject,
  type SchemaObject,
} from '../../http/openapi/types.ts';
import { curlExample } from './curl-example.ts';
import { type Child, html, inline, joined, type Markup, prose } from './markup.ts';
import { fieldList, fieldsOf, followed, type Shown, typeOf } from './schema-words.ts';

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
export const errorId = (code: string) => `error-${code}`;
export const headerId = (name: string) => `header-${name}`;

export function operationArticle(shower: Shower, route: Route): Markup {
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
  const fields = fieldsOf(followed(media.schema, shown), shown, 'request');
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
  const fields = schema ? fieldsOf(schema, shown, 'answer') : null;
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
