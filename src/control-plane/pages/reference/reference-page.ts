/**
 * The API reference: one page, made from the API document. It needs no script; `console/src/reference` adds search and copying.
 * A schema with one use is shown there, any other in a section of its own.
 */
import { ERROR_CODES } from '../../../shared/errors.ts';
import type { DocumentObject } from '../../http/openapi/types.ts';
import { VARIABLES } from './curl-example.ts';
import { type Child, html, inline, type Markup, prose } from './markup.ts';
import { errorId, headerId, nameOf, operationArticle, type Route, type Shower } from './operation-article.ts';
import { fieldsOf, type Shown, schemaId, typeOf } from './schema-words.ts';

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
${fieldsOf(schema, shown, name.endsWith('Request') ? 'request' : 'answer') ?? html`<p>${typeOf(schema, shown)}</p>`}
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
