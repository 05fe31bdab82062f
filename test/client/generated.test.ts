/** The client's types and operations are those of the committed API document. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { GENERATED, generate, generateFromCommitted } from '../../client/generate.ts';

test('client/src/generated.ts is what npm run openapi writes', () => {
  assert.equal(readFileSync(GENERATED, 'utf8'), generateFromCommitted(), 'run npm run openapi and commit it');
});

test('a schema that the generator does not know is refused, not guessed', () => {
  const components = { schemas: { Odd: { type: 'tuple' } }, parameters: {} };
  assert.throws(() => generate({ components, paths: {} }), /no type for/);
});
