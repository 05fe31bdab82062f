/** Checks that the API document lists an error for its operation. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Document, endpointsOf } from './openapi.ts';

interface DocumentedErrors {
  readonly method: string;
  readonly path: RegExp;
  readonly codes: ReadonlySet<string>;
}

let documented: readonly DocumentedErrors[] | undefined;

function readDocument(): DocumentedErrors[] {
  const file = join(import.meta.dirname, '..', '..', 'openapi', 'v1.json');
  const document = JSON.parse(readFileSync(file, 'utf8')) as Document;
  return endpointsOf(document).map(({ method, path, operation }) => ({
    method,
    path: new RegExp(`^${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`),
    codes: new Set(
      Object.values(operation.responses).flatMap(({ content }) =>
        Object.keys(content?.['application/json']?.examples ?? {}),
      ),
    ),
  }));
}

/** Fails if the document does not list `code` for the operation. Ignores URLs that are no operation. */
export function assertDocumentedError(method: string, url: string, code: string): void {
  documented ??= readDocument();
  const path = url.split('?')[0] ?? '';
  const operations = documented.filter((each) => each.method === method && each.path.test(path));
  const is_documented = operations.length === 0 || operations.some(({ codes }) => codes.has(code));
  assert.ok(is_documented, `${method} ${path}: the API document does not list ${code}`);
}
