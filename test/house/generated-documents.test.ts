/** The generated documents say what the code says. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { generatedDocuments } from '../../bin/write-documents.ts';
import { read } from './imports.ts';

for (const { path, text } of await generatedDocuments()) {
  test(`${path} is what the code says (if not: npm run documents)`, () => {
    assert.equal(read(path), text);
  });
}
