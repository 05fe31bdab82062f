/** Checks that the API document lists an error for its operation. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Document, endpointsOf } from './openapi.ts';

interface Declared {
  readonly method: string;
  readonly path: RegExp;
  readonly codes: ReadonlySet<string>;
}

let declared: readonly Declared[] | undefined;

function read(): Declared[] {
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
export function assertDeclared(method: string, url: string, code: string): void {
  declared ??= read();
  const path = url.split('?')[0] ?? '';
  const operations = declared.filter((each) => each.method === method && each.path.test(path));
  const may = operations.length === 0 || operations.some(({ codes }) => codes.has(code));
  assert.ok(may, `${method} ${path}: the API document does not name ${code}`);
}
