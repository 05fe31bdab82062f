/** Habits that a reader can count on, held by reading the files. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import { test } from 'node:test';
import { filesBelow, isTest, PROJECT, read } from './imports.ts';

const MAX_LINES = 800;
const there = (folder: string) => existsSync(join(PROJECT, folder));
/** Written by a program, as long as the API or the schema is. */
const GENERATED = ['client/src/generated.ts', 'python/src/berth/types.py', 'src/control-plane/db/tables.ts'];
const code = ['src', 'test', 'bench', 'bin', 'client', 'python', 'console', 'site', 'adapters']
  .filter(there)
  .flatMap((folder) => filesBelow(folder, ['.ts', '.tsx', '.mjs']))
  .filter((path) => !GENERATED.includes(path));
const python = ['python', 'test']
  .flatMap((folder) => filesBelow(folder, ['.py']))
  .filter((path) => !GENERATED.includes(path));
const source = code.filter((path) => path.startsWith('src/'));
/** The words that this file looks for stand in it. */
const others = code.filter((path) => path !== 'test/house/style.test.ts');
const committed = [
  ...others,
  ...['docs', 'guest', 'bin', 'openapi']
    .filter(there)
    .flatMap((folder) => filesBelow(folder, ['.md', '.sh', '.json', '.txt'])),
  ...['package.json', 'biome.json', 'tsconfig.json', 'README.md'].filter(there),
];

function lines(paths: readonly string[], pattern: RegExp): string[] {
  return paths.flatMap((path) =>
    read(path)
      .split('\n')
      .flatMap((line, at) => (pattern.test(line) ? [`${path}:${at + 1}: ${line.trim().slice(0, 100)}`] : [])),
  );
}

test(`no file has more than ${MAX_LINES} lines`, () => {
  const sizes = [...code, ...python].map((path) => ({
    path,
    lines: read(path).trimEnd().split('\n').length,
  }));
  assert.deepEqual(
    sizes.filter((file) => file.lines > MAX_LINES),
    [],
  );
});

test('every file of more than 30 lines begins with what it owns', () => {
  const headless = code
    .filter((path) => /^(src|client|console|adapters)\//.test(path) && !isTest(path))
    .filter((path) => read(path).split('\n').length > 31 && !/^(#!.*\n)?\/\*\*/.test(read(path)));
  assert.deepEqual(headless, []);
});

test('no comment line has more than 160 characters', () => {
  const commented = [
    ...[...code, ...python],
    ...['bin', 'guest', 'packaging', 'test'].flatMap((folder) => filesBelow(folder, ['.sh', '.py'])),
  ];
  assert.deepEqual(lines(commented, /^(?=.{161})\s*(\/\/|\/?\*|#)/), []);
});

// Biome holds the length of all other functions. Suites are longer: they are lists of tests.
test('no single test has more than 100 lines', () => {
  const long = code.filter(isTest).flatMap((path) => {
    const all = read(path).split('\n');
    return all.flatMap((line, at) => {
      const [, indent] = /^( *)(?:test|it)\(/.exec(line) ?? [];
      if (indent === undefined || line.endsWith(';')) return [];
      const end = all.slice(at + 1).findIndex((other) => new RegExp(`^ {0,${indent.length}}\\S`).test(other));
      const length = all.slice(at + 1, at + 1 + end).filter((other) => other !== '').length;
      return length > 100 ? [`${path}:${at + 1}: ${length} lines`] : [];
    });
  });
  assert.deepEqual(long, []);
});

test('no document deletes a path that begins with a variable that may be empty', () => {
  const documents = ['README.md', ...filesBelow('docs', ['.md'])];
  assert.deepEqual(lines(documents, /\brm -[a-z]* .*\$(?!\{\w+:\?\})/), []);
});

test('only config/env.ts reads the environment', () => {
  const found = lines(
    source.filter((path) => !isTest(path)),
    /\bprocess\.env\b/,
  );
  assert.deepEqual(
    found.map((line) => line.split(':')[0]),
    ['src/config/env.ts'],
  );
});

test('a program that is started by its path is named so that packages, which hold JavaScript, find it too', () => {
  const sources = source.filter((path) => !isTest(path));
  assert.deepEqual(lines(sources, /join\(import\.meta\.dirname.*['`][^'`]*\.ts['`]/), []);
});

test('there is no default export and no barrel', () => {
  assert.deepEqual(lines(others, /^export default\b|\bas default\b|^export \* from/), []);
  assert.deepEqual(
    code.filter((path) => basename(path) === 'index.ts'),
    [],
  );
});

test('no name says utils, helpers, manager or service', () => {
  const vague = /(^|[-/.])(utils?|helpers?|managers?|services?(?!-accounts?[-/.]))([-/.]|$)/i;
  assert.deepEqual(
    code.filter((path) => vague.test(path)),
    [],
  );
});

test('files are named in kebab-case', () => {
  assert.deepEqual(
    code.filter((path) => !/^[a-z0-9]+(-[a-z0-9]+)*(\.test)?\.(ts|tsx|mjs)$/.test(basename(path))),
    [],
  );
});

test('no text has a TODO', () => {
  assert.deepEqual(lines(committed, /\b(TODO|FIXME|XXX)\b/), []);
});

test('no test is skipped by hand or run alone', () => {
  assert.deepEqual(lines(others.filter(isTest), /\b(test|describe|it)\.(only|todo|skip)\(/), []);
});

test('bin/long-tests.txt names test files that exist, each once', () => {
  const named = read('bin/long-tests.txt')
    .trimEnd()
    .split('\n')
    .filter((line) => !line.startsWith('#'));
  assert.deepEqual(named, [...new Set(named.filter((path) => isTest(path) && there(path)))]);
});

test('bin/tests-in-turn.txt names each file with tests in turn once', () => {
  const named = read('bin/tests-in-turn.txt')
    .split('\n')
    .filter((line) => !line.startsWith('#'))
    .flatMap((line) => line.split(' ').filter(Boolean));
  const with_such = others.filter(
    (path) => isTest(path) && read(path).includes('thorough(import.meta.filename)'),
  );
  assert.deepEqual(named.toSorted(), with_such.toSorted());
});

test("no text names a path of its author's machine", () => {
  // `/home/user` is of the guests of docs/e2b.md.
  const place = /(^|[\s'"`(=])\/(home\/(?!user\b)[a-z]|Users\/|work\/|workspace)/;
  assert.deepEqual(lines(committed, place), []);
});

test('no error of the type checker is suppressed', () => {
  assert.deepEqual(lines(others, /@ts-(ignore|nocheck|expect-error)/), []);
});

test('no test casts what it gives to the code: it has the type, or is a stand-in (`test/support/only.ts`)', () => {
  const testing = others.filter((path) => isTest(path) || /^(test|bench)\//.test(path));
  const found = lines(testing, /\bas (never|any)\b *([;,)\]}]|$)|\bas unknown as\b/);
  assert.deepEqual(found, []);
});
