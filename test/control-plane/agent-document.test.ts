/** The internal API's document: committed as the schemas say it, and nothing in it is without a bound. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { ROUTES } from '../../src/protocol/routes.ts';
import { answerViolationOf, conforms, Text } from '../../src/protocol/schemas.ts';
import { DiskHead, HeadResponse } from '../../src/protocol/types.ts';
import { AGENT_DOCUMENT_PATH, agentDocument } from '../../src/protocol/write-document.ts';
import { untrustedText } from '../../src/shared/untrusted-text.ts';

type Schema = Record<string, unknown>;
const document = JSON.parse(agentDocument()) as { paths: Schema; components: { schemas: Schema } };

test('openapi/agent-v1.json is what the schemas say (if not: node src/protocol/write-document.ts)', async () => {
  assert.equal(await readFile(AGENT_DOCUMENT_PATH, 'utf8'), agentDocument());
});

test('the document has every call, with its request and its response', () => {
  for (const { path } of Object.values(ROUTES)) {
    const { post } = document.paths[path] as { post: Schema };
    assert.match(JSON.stringify(post['requestBody']), /"schema":\{"/, path);
    assert.match(JSON.stringify(post['responses']), /"200":\{"description":"[^"]+","content"/, path);
  }
});

/** What is wrong with a schema, and with those in it: each string, number and list has a bound, each object is closed. */
function unbounded(schema: unknown, where: string): string[] {
  if (typeof schema !== 'object' || schema === null) return [];
  if (Array.isArray(schema)) return schema.flatMap((each, i) => unbounded(each, `${where}/${i}`));
  const { type } = schema as Schema;
  const has = (...words: string[]) => words.every((word) => word in schema);
  const wrong =
    (type === 'string' && !has('maxLength') && !has('enum') && !has('const')) ||
    ((type === 'integer' || type === 'number') && !has('minimum', 'maximum')) ||
    (type === 'array' && !has('maxItems')) ||
    (type === 'object' && (schema as Schema)['additionalProperties'] !== false);
  const inner = Object.entries(schema).flatMap(([key, value]) => unbounded(value, `${where}/${key}`));
  return wrong ? [where, ...inner] : inner;
}

test('every field of a request and a response is bounded', () => {
  assert.deepEqual(unbounded(document.components.schemas, ''), []);
  assert.deepEqual(unbounded(document.paths, ''), []);
  assert.deepEqual(unbounded({ a: { type: 'array', items: { type: 'string' } } }, ''), ['/a', '/a/items']);
});

test('messages for people are truncated to their bound, whatever they contain', () => {
  for (const text of [
    'x'.repeat(10_000),
    `${'x'.repeat(298)}\u{1f600}\u{1f600}`,
    'a\u0000b\u001b[31m\r\nc\u202e\ud800',
    '\u{1f600}'.repeat(300),
    '',
  ]) {
    assert(conforms(Text, untrustedText(text)), JSON.stringify(untrustedText(text)));
  }
  assert.equal(untrustedText('The disk is full.'), 'The disk is full.');
  assert(!conforms(Text, 'x'.repeat(301)) && !conforms(Text, 'a\nb') && !conforms(Text, '\ud800'));
});

test('unknown fields in a response of a newer control plane are ignored, known ones are validated', () => {
  const head: DiskHead = {
    ...{
      instance_id: `inst_${'0'.repeat(26)}` as DiskHead['instance_id'],
      size_bytes: 1,
      image_version: null,
    },
    ...{ generation: 0, commit_id: '00000000-0000-4000-8000-000000000000', epoch: 1, durable_at: null },
    ...{ layers: [], keys: [], encryption: true, boot_order: [] },
  };
  const answer = { outcome: 'head', head };
  assert.equal(answerViolationOf(HeadResponse, answer), null);
  assert.equal(
    answerViolationOf(HeadResponse, { ...answer, head: { ...head, colour: 'red' }, more: [] }),
    null,
  );
  assert(!conforms(DiskHead, { ...head, colour: 'red' }));
  for (const wrong of [
    undefined,
    null,
    {},
    { outcome: 'head' },
    { outcome: 'head', head: { ...head, epoch: -1 } },
  ])
    assert.notEqual(answerViolationOf(HeadResponse, wrong), null);
});
