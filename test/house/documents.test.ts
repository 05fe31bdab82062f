/**
 * The documents: an ADR fits on a page, every link leads somewhere, every path, file and test that a document names exists, and
 * each promise in SPECIFICATION.md names its proof.
 */
import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { test } from 'node:test';
import { anchorOf } from '../../site/anchor.ts';
import { filesBelow, PROJECT, read } from './imports.ts';

const ADR_MAX_WORDS = 400;

const documents = [
  ...readdirSync(PROJECT).filter((name) => name.endsWith('.md')),
  ...['docs', 'bench', 'guest', 'client', 'adapters', 'python', 'console', 'packaging'].flatMap((folder) =>
    filesBelow(folder, ['.md']),
  ),
];
const adrs = documents.filter((path) => /^docs\/adr\/\d{4}-/.test(path));
const exists = (path: string) => existsSync(join(PROJECT, path));

test(`an ADR has a context, a decision, consequences, and at most ${ADR_MAX_WORDS} words`, () => {
  assert.ok(adrs.length > 40);
  for (const path of adrs) {
    const text = read(path);
    const words = text.trim().split(/\s+/).length;
    assert.ok(words <= ADR_MAX_WORDS, `${path} has ${words} words`);
    for (const part of ['Context', 'Decision', 'Consequences'])
      assert.match(text, new RegExp(`^\\*\\*${part}\\b.*\\*\\*|^## ${part}`, 'm'), path);
  }
});

const numberOf = (adr: string) => Number(basename(adr).slice(0, 4));

test('each decision has a number of its own, also in its title', () => {
  assert.deepEqual([...new Set(adrs.map(numberOf))].length, adrs.length);
  for (const path of adrs) assert.match(read(path), new RegExp(`^# ${numberOf(path)}\\. `), path);
});

test('a mention of a decision has the number of one that exists, and of the file that it leads to', () => {
  const numbers = new Set(adrs.map(numberOf));
  const code = [
    'src',
    'test',
    'bench',
    'client',
    'python',
    'adapters',
    'packaging',
    'deploy',
    'site',
  ].flatMap((folder) => filesBelow(folder, ['.ts', '.sh', '.service', '.pl', '.py']));
  for (const path of [...documents, ...code]) {
    const text = read(path);
    for (const [found, number] of text.matchAll(/\bADRs?\s(?:\* )?\[?(\d+)\b/g))
      assert.ok(numbers.has(Number(number)), `${path}: ${found}`);
    for (const [found, number, of_file] of text.matchAll(
      /\[(?:ADR )?(\d+)\]\([^)\s]*?(\d{4})-[a-z0-9-]+\.md/g,
    ))
      assert.equal(Number(number), Number(of_file), `${path}: ${found}`);
    for (const [found] of text.matchAll(/docs\/adr\/\d{4}-[a-z0-9-]+\.md/g))
      assert.ok(adrs.includes(found), `${path}: ${found}`);
  }
});

function anchorsOf(path: string): string[] {
  return [...read(path).matchAll(/^#+ (.*)$/gm)].map(([, title = '']) => anchorOf(title));
}

test('every relative link leads to a file, and its anchor to a heading', () => {
  const broken = documents.flatMap((path) =>
    [...read(path).matchAll(/\]\((?!https?:|mailto:)([^)\s]+)\)/g)].flatMap(([, link = '']) => {
      const [file = '', anchor] = link.split('#');
      const target = file === '' ? path : join(dirname(path), file);
      if (!exists(target)) return [`${path}: ${link}`];
      return anchor === undefined || anchorsOf(target).includes(anchor) ? [] : [`${path}: ${link}`];
    }),
  );
  assert.deepEqual(broken, []);
});

const ROOMS = readdirSync(join(PROJECT, 'src'), { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name);
const FOLDERS = [
  'src',
  'test',
  'bench',
  'client',
  'adapters',
  'python',
  'console',
  'docs',
  'guest',
  'openapi',
  'packaging',
  'deploy',
  'bin',
  'site',
];

/** Built from the sources, so not in a clone. */
const BUILT = /^(?:console|site)\/dist$/;

/** Paths in backquotes below a folder of the project, below a room without `src/`, or beside the document. */
function pathsIn(text: string): string[] {
  const without_figures = text.replaceAll(/bench `[^`]+`/g, '');
  return [...without_figures.matchAll(/`([\w-]+(?:\/[\w.-]+)*\/?)(?::[^`]*)?`/g)].flatMap(([, path = '']) => {
    const [first = '', second] = path.split('/');
    if (second === undefined || BUILT.test(path)) return [];
    if (FOLDERS.includes(first)) return [path];
    return ROOMS.includes(first) ? [`src/${path}`] : [];
  });
}

test('every path that a document names exists', () => {
  const missing = documents.flatMap((document) =>
    pathsIn(read(document))
      .filter((path) => !exists(path) && !exists(join(dirname(document), path)))
      .map((path) => `${document}: ${path}`),
  );
  assert.ok(pathsIn(read('ARCHITECTURE.md')).length > 10);
  assert.deepEqual([...new Set(missing)], []);
});

test('every file of code that a document for developers names without its folder exists', () => {
  const names = new Set(
    ['src', 'client', 'test', 'bench', 'site', 'console', 'python', 'guest', 'adapters', 'bin']
      .flatMap((folder) => filesBelow(folder, ['.ts', '.tsx', '.sh', '.sql', '.pl', '.py']))
      .map((path) => basename(path)),
  );
  const for_developers = documents.filter((path) => /^[A-Z]|^docs\/(?:adr|developing)\//.test(path));
  const missing = for_developers.flatMap((document) =>
    [...read(document).matchAll(/`([\w-]+\.(?:ts|tsx|sql|pl))`/g)]
      .filter(([, name = '']) => !names.has(name))
      .map(([, name]) => `${document}: ${name}`),
  );
  assert.deepEqual(missing, []);
});

test('every file of code that a comment names in backticks exists', () => {
  const files = [
    'src',
    'client',
    'test',
    'bench',
    'site',
    'console',
    'python',
    'guest',
    'adapters',
    'bin',
  ].flatMap((folder) => filesBelow(folder, ['.ts', '.tsx', '.sh', '.sql', '.pl', '.py']));
  const missing = files.flatMap((path) =>
    [...read(path).matchAll(/`((?:[\w-]+\/)*[\w-]+\.(?:ts|tsx|pl))`/g)]
      .filter(([, name = '']) => !files.some((each) => each === name || each.endsWith(`/${name}`)))
      .map(([, name]) => `${path}: ${name}`),
  );
  assert.deepEqual(missing, []);
});

test('every module that a test names for a program of its own exists', () => {
  const missing = filesBelow('test', ['.ts']).flatMap((path) =>
    [...read(path).matchAll(/\bSRC\/([\w/-]+\.ts)/g)]
      .filter(([, name = '']) => !exists(join('src', name)))
      .map(([, name]) => `${path}: ${name}`),
  );
  assert.deepEqual(missing, []);
});

/** The titles that a document quotes behind a test's path: `test/….test.ts`: “title”†, “another …”. */
const QUOTED_TITLES =
  /`((?:test|src|bench)\/[\w./-]+\.test\.ts)`(?:†?: ((?:“[^”]+”(?: \([^)]*\))?†?(?:, )?)+))?/g;

test('every test that a document names exists, under that title', () => {
  const missing = documents.flatMap((document) =>
    [...read(document).matchAll(QUOTED_TITLES)].flatMap(([, path = '', titles = '']) => {
      if (!exists(path)) return [`${document}: ${path}`];
      const text = read(path).replaceAll("\\'", "'");
      return [...titles.matchAll(/“([^”]+)”/g)]
        .filter(([, title = '']) => !text.split('\n').some((line) => hasInOrder(line, title.split('…'))))
        .map(([, title]) => `${document}: ${path}: ${title}`);
    }),
  );
  assert.deepEqual(missing, []);
});

/** An ellipsis in a title stands for any text within its line. */
function hasInOrder(line: string, pieces: readonly string[]): boolean {
  let from = 0;
  return pieces.every((piece) => {
    const at = line.indexOf(piece, from);
    from = at + piece.length;
    return at >= 0;
  });
}

test('titles of tests are quoted in the form that is checked', () => {
  const unchecked = documents.flatMap((document) =>
    [...read(document).matchAll(/\.test\.ts`†?:? "[^"]*"/g)].map(([quoted]) => `${document}: ${quoted}`),
  );
  assert.deepEqual(unchecked, []);
});

test('each promise in SPECIFICATION.md names a test or a benchmark that exists', () => {
  const figures = read('bench/README.md');
  const rows = read('SPECIFICATION.md')
    .split('\n')
    .filter((line) => /^\| (?!promise|event)/.test(line));
  assert.ok(rows.length > 50);
  for (const row of rows) {
    const shown_by = row.split(' | ').at(-1) ?? '';
    assert.match(shown_by, /`[\w./-]+\.test\.ts`|bench `|docs\/measurements\//, row);
    for (const [, figure = ''] of shown_by.matchAll(/bench `([^`]+)`/g))
      assert.ok(figures.includes(`\`${figure}`), `bench/README.md has no ${figure}`);
  }
});
