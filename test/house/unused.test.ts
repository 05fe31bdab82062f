/** No unused files and no unused exports. Both are looked for by name, in the text of all files. */
import assert from 'node:assert/strict';
import { basename } from 'node:path';
import { test } from 'node:test';
import { filesBelow, importsOf, isTest, read } from './imports.ts';

const code = [
  'src',
  'test',
  'bench',
  'bin',
  'client',
  'console',
  'site',
  'adapters',
  'guest',
  'packaging',
].flatMap((folder) => filesBelow(folder, ['.ts', '.tsx', '.mjs', '.py', '.pl', '.css']));
const texts = new Map(
  [
    ...code,
    ...['bin', 'guest', 'packaging', 'docs', 'bench'].flatMap((folder) =>
      filesBelow(folder, ['.sh', '.md', '.service']),
    ),
    ...['package.json', 'README.md', 'CONTRIBUTING.md', 'ARCHITECTURE.md', 'Dockerfile'],
  ].map((path) => [path, read(path)]),
);
const sources = code.filter((path) => /\.tsx?$/.test(path) && path !== 'client/src/generated.ts');

test('every file is imported, started or named somewhere', () => {
  const imported = new Set(sources.flatMap((path) => importsOf(path).map(({ to }) => to)));
  const isNamed = (path: string) => {
    const name = basename(path).replace(/\.[cm]?tsx?$/, '');
    // As `bin/run-tests.ts` in a script, and as `'write-openapi'` where the ending depends on the build.
    const named = new RegExp(`[/'"\`]${name}(\\.\\w+)?\\b`);
    return [...texts].some(([other, text]) => other !== path && named.test(text));
  };
  assert.deepEqual(
    code.filter((path) => !isTest(path) && !imported.has(path) && !isNamed(path)),
    [],
  );
});

test('every export is used: a value in another file, a type at least in its own', () => {
  const EXPORT = /^export (?:abstract |async )*(const|let|function\*?|class|interface|type) (\w+)/gm;
  const uses = new Map<string, number>();
  const files = new Map<string, number>();
  const count = (counts: typeof uses, words: Iterable<string>) => {
    for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  };
  for (const text of texts.values()) {
    const words = text.match(/\w+/g) ?? [];
    count(uses, words);
    count(files, new Set(words));
  }
  const unused = sources.flatMap((path) =>
    [...read(path).matchAll(EXPORT)].flatMap(([, kind = '', name = '']) => {
      const is_type = kind === 'interface' || kind === 'type';
      return (is_type ? uses : files).get(name) === 1 ? [`${path}: ${name}`] : [];
    }),
  );
  assert.deepEqual(unused, []);
});
