/** Makes the index of the site's search: every section of the pages, and every operation of the API reference. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { PROJECT } from '../bin/build-folder.ts';
import type { DocumentObject } from '../src/control-plane/http/openapi-schemas.ts';
import type { Section } from './markdown.ts';
import type { Page } from './pages.ts';
import type { Found } from './src/found.ts';

export function searchIndex(
  pages: readonly { readonly page: Page; readonly sections: readonly Section[] }[],
): Found[] {
  const of_pages = pages.flatMap(({ page, sections }) =>
    sections.map(({ level, anchor, title, text }) => ({
      address: level === 1 ? page.address : `${page.address}#${anchor}`,
      page: page.title,
      title,
      text,
    })),
  );
  return [...of_pages, ...operations()];
}

function operations(): Found[] {
  const document = JSON.parse(readFileSync(join(PROJECT, 'openapi/v1.json'), 'utf8')) as DocumentObject;
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { operationId, summary, description = '' }]) => ({
      address: `/docs/api#${operationId}`,
      page: 'API reference',
      title: summary,
      text: `${method.toUpperCase()} ${path} ${description}`
        .replaceAll(/`|\*\*/g, '')
        .replaceAll(/\s+/g, ' '),
    })),
  );
}
